// SPDX-License-Identifier: Apache-2.0
// A fake NVML with two GPUs; the second one does not support some queries.
#include <stdio.h>
#include <stdlib.h>

typedef struct nvmlDevice_st {
  int index;
} * Device;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};

static struct nvmlDevice_st devices[2] = {{0}, {1}};
enum { success = 0, not_supported = 3 };

int nvmlInit_v2(void) { return getenv("FAKE_NVML_FAILS") ? 9 : success; }
int nvmlShutdown(void) { return success; }
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return success;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  *device = &devices[index];
  return success;
}
int nvmlDeviceGetName(Device device, char* name, unsigned int length) {
  snprintf(name, length, "NVIDIA Fake %d", device->index);
  return success;
}
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned int length) {
  snprintf(uuid, length, "GPU-%d", device->index);
  return success;
}
int nvmlDeviceGetMemoryInfo(Device device, struct Memory* memory) {
  if (device->index == 1) return not_supported;
  memory->total = 80ULL << 30;
  memory->used = 20ULL << 30;
  memory->free = 60ULL << 30;
  return success;
}
int nvmlDeviceGetUtilizationRates(Device device, struct Utilization* rates) {
  rates->gpu = 97;
  rates->memory = 40;
  return device->index == 1 ? not_supported : success;
}
