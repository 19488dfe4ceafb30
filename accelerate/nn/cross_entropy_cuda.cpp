// SPDX-License-Identifier: Apache-2.0
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <dlfcn.h>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/cross_entropy_kernel.hpp"
#include "accelerate/nn/kernel_cache.hpp"
#include "accelerate/nn/kernels/cross_entropy_text.hpp"

namespace accelerate::nn {
namespace {

[[noreturn]] void fail_driver(const std::string& text) {
  base::fail(ErrorKind::device, {}, "linear_cross_entropy", "{}", text);
}

/// Functions of the driver. LibTorch has a table of them, too, without a public header. CUDA has loaded the library
/// already, and it stays loaded until the process ends.
struct DriverFunctions {
  DriverFunctions() {
    void* const handle = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) fail_driver(fmt::format("the CUDA driver cannot be loaded: {}", ::dlerror()));
    find(handle, "cuGetErrorString", error_text);
    find(handle, "cuModuleLoadData", load_module);
    find(handle, "cuModuleGetFunction", get_function);
    find(handle, "cuLaunchKernel", launch);
  }

  /// \throws Error (device) with the driver's text.
  void check(const char* name, CUresult code) const {
    if (code == CUDA_SUCCESS) return;
    const char* text = nullptr;
    error_text(code, &text);
    fail_driver(fmt::format("{} failed: {}", name, text == nullptr ? "unknown error" : text));
  }

  decltype(&::cuGetErrorString) error_text = nullptr;
  decltype(&::cuModuleLoadData) load_module = nullptr;
  decltype(&::cuModuleGetFunction) get_function = nullptr;
  decltype(&::cuLaunchKernel) launch = nullptr;

 private:
  template <typename Function>
  static void find(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function == nullptr) fail_driver(fmt::format("the CUDA driver has no function {}; install a newer one", name));
  }
};

class LoadedKernel final : public CrossEntropyKernel {
 public:
  explicit LoadedKernel(c10::Device device) : device_(device) {
    const c10::cuda::CUDAGuard guard(device);
    // Loading a module is forbidden while a stream of this thread is captured, unless the mode is relaxed.
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    C10_CUDA_CHECK(cudaFree(nullptr));  // makes LibTorch's context the current one of the driver
    const auto* const properties = at::cuda::getDeviceProperties(device.index());
    const std::string architecture = fmt::format("sm_{}{}", properties->major, properties->minor);
    const std::string binary = compiled_kernel(RuntimeCompiler(), cross_entropy_source(), architecture,
                                               KernelCache(kernel_cache_folder(env::current_variables())));
    CUmodule module = nullptr;  // kept until the process ends, because graphs may contain its functions
    driver_.check("cuModuleLoadData", driver_.load_module(&module, binary.data()));
    const auto find = [&](CUfunction& function, const char* name) {
      driver_.check("cuModuleGetFunction", driver_.get_function(&function, module, name));
    };
    find(float32_, "cross_entropy_float32");
    find(bfloat16_, "cross_entropy_bfloat16");
    find(float16_, "cross_entropy_float16");
  }

  void launch(const CrossEntropyArguments& arguments, at::ScalarType dtype, int64_t rows) const override {
    const c10::cuda::CUDAGuard guard(device_);
    const CUfunction function = dtype == at::kFloat ? float32_ : dtype == at::kBFloat16 ? bfloat16_ : float16_;
    CrossEntropyArguments copy = arguments;
    void* pointers[] = {&copy};
    driver_.check("cuLaunchKernel",
                  driver_.launch(function, static_cast<unsigned int>(rows), 1, 1,
                                 cross_entropy_threads(arguments.classes, dtype), 1, 1, /*sharedMemBytes=*/0,
                                 at::cuda::getCurrentCUDAStream(device_.index()).stream(), pointers, nullptr));
  }

 private:
  c10::Device device_;
  DriverFunctions driver_;
  CUfunction float32_ = nullptr, bfloat16_ = nullptr, float16_ = nullptr;
};

}  // namespace

KernelSource cross_entropy_source() {
  return {.name = "cross_entropy.cu",
          .text = std::string(cross_entropy_text()),
          .options = {"--std=c++17", "--device-as-default-execution-space"}};
}

const CrossEntropyKernel* cross_entropy_kernel(c10::Device device, at::ScalarType dtype) {
  if (!device.is_cuda() || (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)) return nullptr;
  // Never destroyed: a thread may still use it when the process ends.
  static auto& kernels = *new CrossEntropyKernels([](c10::Device one) { return std::make_unique<LoadedKernel>(one); });
  return kernels.of(device);
}

}  // namespace accelerate::nn
