"""Ways to GPUs: which paths of a node lead to them and which do not, however they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.gpus.exposure import (
    DEVICE_LIST,
    NODE_PATHS,
    canonical,
    hiding_values,
    is_device,
    is_of_the_gpu_stack,
    leads_to_gpus,
    may_set_devices,
    names_devices,
    shows_devices,
)
from tests.cases import cases

NO_WAY = """
/dev/infiniband /dev/driver /dev/nvme0n1 /dev/null /dev/shm /data /home/dev/nvidia0 /var/log /run/udev /run/nvidia/validations
/run/containerd/io.containerd.runtime.v2.task /var/lib/kubelet/pods /run/docker/plugins /etc/ssl /proc/sys/net /proc/driver
/proc/1/net /proc/self/mounts /proc/self/task/1/net /sys
"""
WAYS = """
/var/lib/kubelet/plugins /var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock /var/lib/kubelet/plugins_registry /run/docker
/var/run/docker/containerd /run/docker/containerd/containerd.sock.ttrpc /dev/vfio /dev/vfio/17 /proc /proc/1 /proc/self/task
/proc/self/task/1/ /proc/1/root /proc/1/root/dev/nvidia0 /dev/nvidia0 //dev/./nvidia-uvm/ /dev/dri/card0 /dev/char /dev/char/195:0
/dev / /run/nvidia/driver /var/run/nvidia/driver/dev/nvidia0 /run/nvidia /var/lib/kubelet/device-plugins/kubelet.sock
/var/lib/kubelet/pod-resources /var/lib /run/containerd/containerd.sock /var/run/containerd /var/run/crio/crio.sock
/var/run/docker.sock /run /etc/cdi /var/run/cdi/nvidia.yaml /tmp/../dev/nvidia0 /dev/rbln0 /dev/rsd0 /dev/iluvatar0 /dev/itrctl
/dev/gcu0 /dev/biren/card_0 /dev/qaic_aic100_0 /dev/tenstorrent/0 /dev/hailo0 /dev/dxrt0 /dev/aries0 /etc/vdev/docker
"""


@pytest.mark.parametrize("path", ["", *NO_WAY.split()])
def test_paths_that_lead_to_no_gpu(path: str) -> None:
    assert not leads_to_gpus(path)


@pytest.mark.parametrize("path", WAYS.split())
def test_paths_that_lead_to_gpus(path: str) -> None:
    assert leads_to_gpus(path)


@cases(
    ("variable", "shows", "hiding"),
    nvidia=("NVIDIA_VISIBLE_DEVICES", True, "void"),
    docker_swarm=("DOCKER_RESOURCE_GPU", True, "void"),
    another=("HOME", False, "void"),
)
def test_variables_by_which_runtimes_show_devices(variable: str, shows: bool, hiding: str) -> None:
    assert shows_devices(variable) is shows
    assert hiding_values(variable)[-1] == hiding


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/var/run/nvidia-container-devices/all", True),
        ("/./var/run//nvidia-container-devices/0", True),
        ("/var/run/nvidia", False),
    ],
)
def test_mounts_that_list_devices(path: str, want: bool) -> None:
    assert (DEVICE_LIST in path) is want


SPELLINGS = st.sampled_from(["/", "//", "/./", "/x/../"])


@given(st.sampled_from(NODE_PATHS), st.data())
def test_a_path_is_the_same_however_it_is_written(path: str, data: st.DataObject) -> None:
    parts = path.strip("/").split("/")
    at_run = ["var", *parts] if parts[0] == "run" and data.draw(st.booleans()) else parts
    end = data.draw(st.sampled_from(["", "/", "/."]))
    written = "".join(data.draw(SPELLINGS) + part for part in at_run) + end

    assert canonical(written) == "/" + "/".join(parts) + "/"
    assert leads_to_gpus(written)


@given(st.sampled_from(NODE_PATHS), st.integers(min_value=0, max_value=4))
def test_every_directory_above_leads_there(path: str, levels: int) -> None:
    assert leads_to_gpus("/" + "/".join(path.strip("/").split("/")[:levels]))


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/var/lib/kubelet/device-plugins/", True),
        ("/var/lib/kubelet/pod-resources/kubelet.sock", True),
        ("/var/lib/kubelet/device-plugins-of-mine", False),
        ("/var/lib/kubelet", False),
        ("/", False),
    ],
)
def test_paths_of_the_gpu_stack(path: str, want: bool) -> None:
    assert is_of_the_gpu_stack(path) is want


@pytest.mark.parametrize(
    ("path", "want"), [("/dev/nvidia0", True), ("/dev/./dri/card0", True), ("/dev/null", False), ("/usr/local/nvidia", False)]
)  # fmt: skip
def test_devices_of_vendors(path: str, want: bool) -> None:
    assert is_device(path) is want


@pytest.mark.parametrize(
    ("prefix", "want"),
    [("", True), ("N", True), ("NVIDIA_", True), ("HABANA_VISIBLE_DEVICES", True), ("DOCKER_RESOURCE_X", True),
     ("DOCKER_", True), ("APP_", False), ("NVIDIA_VISIBLE_DEVICES_", False), ("nvidia_", False)],
)  # fmt: skip
def test_prefixes_of_variables(prefix: str, want: bool) -> None:
    assert may_set_devices(prefix) is want


@pytest.mark.parametrize(
    "key", ["team", "cdi.k8s.io.example.com/x", "xcdi.k8s.io/x", "example.com/cdi.k8s.io", "nri.io/devices"]
)
def test_annotations_that_name_no_devices(key: str) -> None:
    assert not names_devices(key)
