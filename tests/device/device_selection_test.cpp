// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/device_selection.hpp"

#include "tests/testing.hpp"

namespace device = accelerate::device;
using accelerate::env::DeviceName;
using accelerate::env::ProcessEnv;
using accelerate::env::Settings;

namespace {

ProcessEnv local(int64_t rank, int64_t size) {
  return {.rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size};
}

DeviceName cuda(std::optional<int64_t> index = {}) { return {.type = "cuda", .index = index}; }
device::AcceleratorType gpus(int64_t count) { return {.type = c10::kCUDA, .count = count}; }

/// Returns "kind: message".
std::string refusal(const ProcessEnv& process, const Settings& settings, const device::AcceleratorType& accelerator) {
  try {
    device::select_device(process, settings, accelerator,
                          {.rank = process.rank, .world_size = process.world_size, .host = "gpu-a"});
  } catch (const accelerate::Error& error) {
    return fmt::format("{}: {}", accelerate::base::error_kind_name(error.kind()), error.what());
  }
  return "no error";
}

}  // namespace

TEST_CASE("a rank uses the GPU of its local rank") {
  CHECK(device::select_device(local(0, 1), {}, gpus(1)) == c10::Device("cuda:0"));
  CHECK(device::select_device(local(3, 4), {}, gpus(4)) == c10::Device("cuda:3"));
  const ProcessEnv second_node{.rank = 5, .world_size = 8, .local_rank = 1, .local_world_size = 4};
  CHECK(device::select_device(second_node, {}, gpus(4)) == c10::Device("cuda:1"));
}

TEST_CASE("the CPU is used on request or without a GPU, for any number of ranks") {
  CHECK(device::select_device(local(3, 4), {}, gpus(0)) == c10::Device("cpu"));
  CHECK(device::select_device(local(3, 4), {.cpu = true}, gpus(2)) == c10::Device("cpu"));
}

TEST_CASE("more local ranks than GPUs are refused with both counts unless allowed") {
  CHECK(refusal(local(1, 4), {}, gpus(2)) ==
        "device: [rank 1 of 4, gpu-a] device: 4 ranks on this machine, 2 GPUs visible; start at most 2, run on the CPU "
        "(ACCELERATE_USE_CPU=1), or set ACCELERATE_ALLOW_SHARED_GPUS=1, which is also correct if each rank sees only "
        "its own GPU");
  CHECK(refusal(local(0, 2), {}, gpus(1)).find("2 ranks on this machine, 1 GPU visible; start at most 1,") !=
        std::string::npos);
  CHECK(device::select_device(local(3, 4), {.allow_shared_gpus = true}, gpus(2)) == c10::Device("cuda:1"));
}

TEST_CASE("a device by name has priority over everything else") {
  CHECK(device::select_device(local(0, 1), {.device = cuda(1)}, gpus(2)) == c10::Device("cuda:1"));
  CHECK(device::select_device(local(3, 4), {.device = cuda(1)}, gpus(2)) == c10::Device("cuda:1"));
  CHECK(device::select_device(local(1, 4), {.device = DeviceName{}}, gpus(2)) == c10::Device("cpu"));
}

TEST_CASE("cuda without an index is the GPU of the local rank, with the usual check of the count") {
  CHECK(device::select_device(local(3, 4), {.device = cuda()}, gpus(4)) == c10::Device("cuda:3"));
  CHECK(refusal(local(1, 4), {.device = cuda()}, gpus(2)).find("4 ranks on this machine, 2 GPUs visible;") !=
        std::string::npos);
  CHECK(device::select_device(local(3, 4), {.device = cuda(), .allow_shared_gpus = true}, gpus(2)) ==
        c10::Device("cuda:1"));
}

TEST_CASE("a missing GPU by name is refused with the count and the remedy") {
  const std::string prefix = "device: [rank 0 of 1, gpu-a] device: ";
  const std::string where =
      " is requested (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the config file), ";
  const std::string look = "cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES";
  CHECK(refusal(local(0, 1), {.device = cuda()}, gpus(0)) ==
        prefix + "cuda" + where + "0 GPUs are visible; request " + look);
  CHECK(refusal(local(0, 1), {.device = cuda(64)}, gpus(0)) ==
        prefix + "cuda:64" + where + "0 GPUs are visible; request " + look);
  CHECK(refusal(local(0, 1), {.device = cuda(1)}, gpus(1)) ==
        prefix + "cuda:1" + where + "1 GPU is visible; request at most cuda:0 or " + look);
  CHECK(refusal(local(0, 1), {.device = cuda(300)}, gpus(4)) ==
        prefix + "cuda:300" + where + "4 GPUs are visible; request at most cuda:3 or " + look);
}

TEST_CASE("the accelerator may have any type, and errors contain its name") {
  const device::AcceleratorType xpus{.type = c10::kXPU, .count = 2};
  CHECK(device::select_device(local(1, 2), {}, xpus) == c10::Device("xpu:1"));
  CHECK(device::select_device(local(0, 1), {.device = DeviceName{.type = "xpu", .index = 1}}, xpus) ==
        c10::Device("xpu:1"));
  const std::string prefix = "device: [rank 0 of 1, gpu-a] device: ";
  const std::string where =
      " is requested (device in the code, ACCELERATE_TORCH_DEVICE or torch_device in the config file), ";
  CHECK(refusal(local(0, 1), {.device = cuda(1)}, xpus) ==
        prefix + "cuda:1" + where + "2 xpu devices are visible; request xpu or cpu");
  CHECK(refusal(local(0, 4), {}, xpus).find("4 ranks on this machine, 2 xpu devices visible; start at most 2, ") !=
        std::string::npos);
  CHECK(refusal(local(0, 1), {.device = DeviceName{.type = "xpu", .index = 2}}, xpus) ==
        prefix + "xpu:2" + where + "2 xpu devices are visible; request at most xpu:1 or cpu");
  CHECK(refusal(local(0, 1), {.device = DeviceName{.type = "gpu"}}, gpus(1)) ==
        prefix + "gpu" + where +
            "1 GPU is visible; request cuda or cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  CHECK(refusal(local(0, 4), {}, xpus).find("4 ranks on this machine, 2 xpu devices visible; start at most 2,") !=
        std::string::npos);
}

TEST_CASE("check_visible() accepts CPU and visible devices, and refuses others with the count and the remedy") {
  const auto refused = [](const char* name, const device::AcceleratorType& accelerator) -> std::string {
    try {
      device::check_visible(c10::Device(name), accelerator, "DataParallel");
    } catch (const accelerate::Error& error) {
      CHECK((error.kind() == accelerate::ErrorKind::device));
      return error.what();
    }
    return "";
  };
  for (const char* there : {"cpu", "cpu:0", "meta", "cuda", "cuda:1"}) CHECK(refused(there, gpus(2)).empty());
  const std::string look = "cpu, or look at nvidia-smi and CUDA_VISIBLE_DEVICES";
  CHECK(refused("cuda:2", gpus(2)) ==
        "DataParallel: cuda:2 is requested, 2 GPUs are visible; request at most cuda:1 or " + look);
  CHECK(refused("cuda", gpus(0)) == "DataParallel: cuda is requested, 0 GPUs are visible; request " + look);
  CHECK(refused("xpu:0", gpus(1)) == "DataParallel: xpu:0 is requested, 1 GPU is visible; request cuda or " + look);
}

TEST_CASE("the GPUs of this machine are counted as by LibTorch") {
  const auto found = device::accelerator();
  CHECK((found.type == c10::kCUDA));
  CHECK(found.count == static_cast<int64_t>(torch::cuda::device_count()));
}
