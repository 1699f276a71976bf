"""`gpu-admission check`: the webhook's own engine on manifests, without a cluster."""

import sys
from collections import Counter
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click
import msgspec

from webhook.commands import reports
from webhook.commands.output import Screen, counted
from webhook.commands.parameters import MOMENT
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.engine import Engine, Outcome
from webhook.manifests import Manifests, read_manifests
from webhook.offline import Answer, PodAnswer, Verdict, answer
from webhook.yaml_documents import dump_document
