"""The labels of nodes that must be read for the rules in force."""

from policies.placement.hardware import HARDWARE, LabelKeys, known_keys
from policies.rules import gpu_class
from webhook.configuration.loader import Configuration


def keys_to_know(configuration: Configuration) -> LabelKeys:
    """Return the labels of nodes that the rules in force can ask about."""
    policies, chosen = configuration.policies, list[str]()
    for each in policies.policies:
        options = policies.binding(gpu_class.RULE, each).options
        if isinstance(options, gpu_class.GPUClassOptions):
            chosen += options.hardware_labels
    return known_keys(configuration.classes.label_keys, (*chosen, *HARDWARE))
