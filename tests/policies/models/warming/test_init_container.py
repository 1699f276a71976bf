"""The volumes of a pod whose model is fetched."""

from policies.models.warming.init_container import Warming
from policies.models.warming.model_uri import ModelURI, parse_model_uri
from policies.models.warming.options import SourceOptions
from policies.models.warming.server_credentials import ServerCredentials
from tests.cases import cases

CLAIM, NO_CLAIM = "models", None
WITH_SECRET = SourceOptions(credentials_secret="keys")


@cases(
    ("uri", "source", "claim", "want"),
    {
        "empty-dir": ("s3://bucket/m", SourceOptions(), NO_CLAIM, ["model"]),
        "claim-and-a-secret-of-variables": ("s3://bucket/m", WITH_SECRET, CLAIM, ["model=models"]),
        "google-without-a-secret": ("gs://bucket/m", SourceOptions(), CLAIM, ["model=models"]),
        "key-file": ("gs://bucket/m", WITH_SECRET, NO_CLAIM, ["model", "model-credentials=keys"]),
        "source-claim": ("pvc://c/m", SourceOptions(), NO_CLAIM, ["model", "model-source=c"]),
    },
)
def test_volumes(uri: str, source: SourceOptions, claim: str | None, want: list[str]) -> None:
    model = parse_model_uri(uri)
    assert isinstance(model, ModelURI)
    warming = Warming(
        uri=model,
        source=source,
        image="fetcher",
        claim=claim,
        size_limit="1Gi",
        resources=None,
        run_as_user=None,
        servers=ServerCredentials(),
    )

    found = []
    for volume in warming.volumes:
        claimed, secret = volume.persistent_volume_claim, volume.secret
        of = claimed.claim_name if claimed else secret.secret_name if secret else ""
        found.append(volume.name.removeprefix("gpu-admission-") + (f"={of}" if of else ""))
        assert (volume.empty_dir is None) == bool(of)
        assert claimed is None or bool(claimed.read_only) == volume.name.endswith("-source")
    assert found == want
