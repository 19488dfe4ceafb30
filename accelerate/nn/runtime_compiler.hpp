// SPDX-License-Identifier: Apache-2.0
// Private: compiles CUDA code at run time with NVRTC. Needs no driver and no GPU.
#pragma once

#include <string>
#include <vector>

namespace accelerate::nn {

struct KernelSource {
  std::string name;  ///< for messages of the compiler: "cross_entropy.cu"
  std::string text;
  std::vector<std::string> options{};
};

/// Libraries to try, in this order: NVRTC that is already loaded, the one of LibTorch's wheel, the system's.
[[nodiscard]] std::vector<std::string> nvrtc_libraries();

/// NVIDIA's compiler. The library stays loaded until the process ends. Thread-safe.
class RuntimeCompiler {
 public:
  /// Loads the first library that can be loaded.
  /// \throws Error (environment) with the reason of each library if there is none.
  explicit RuntimeCompiler(const std::vector<std::string>& libraries = nvrtc_libraries());

  [[nodiscard]] const std::string& library() const { return library_; }
  /// Returns a version such as "13.0".
  [[nodiscard]] const std::string& version() const { return version_; }

  /// Returns a CUBIN.
  ///
  /// \param architecture  Such as "sm_90".
  /// \throws Error (environment) with the compiler's messages.
  [[nodiscard]] std::string compile(const KernelSource& source, const std::string& architecture) const;

 private:
  void* handle_ = nullptr;
  std::string library_;
  std::string version_;
};

}  // namespace accelerate::nn
