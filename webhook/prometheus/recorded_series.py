"""Names and labels of the series that the recording rules of the chart make from DCGM and other exporters.

A recorded series has the labels `namespace`, `pod`, `gpu` and, of a MIG slice, `gpu_instance`.
"""

USE = "gpu_admission:gpu_use:ratio"
"""How busy a GPU or MIG slice was: 0 to 1."""
MEMORY = "gpu_admission:gpu_memory_used:bytes"
USE_BY_HOUR = "gpu_admission:gpu_use:max1h"
"""The largest USE of an hour, once an hour."""
MEMORY_BY_HOUR = "gpu_admission:gpu_memory_used:max1h"
"""The largest MEMORY of an hour, once an hour."""

NAMESPACE, POD, GPU, GPU_INSTANCE = LABELS = ("namespace", "pod", "gpu", "gpu_instance")

RECORDED_ONLY = '{job=""}'
"""Only recorded series have no `job`: Prometheus adds it to all series of a target, which could fake the name."""
