// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/runtime_compiler.hpp"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

#include "accelerate/base/error.hpp"

namespace accelerate::nn {
namespace {

// Declarations from docs.nvidia.com/cuda/nvrtc, because LibTorch's archives have no nvrtc.h.
using NvrtcProgram = struct _nvrtcProgram*;
constexpr int kNvrtcSuccess = 0;

/// Names of the library, first that of LibTorch's CUDA version: a driver of this version may refuse newer code.
std::vector<std::string> nvrtc_names() {
  return {fmt::format("libnvrtc.so.{}", CUDA_VERSION / 1000), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
}

[[noreturn]] void fail_compiler(const std::string& text) {
  base::fail(ErrorKind::environment, {}, "linear_cross_entropy", "{}", text);
}

/// A function of the library.
template <typename... Args>
int call_nvrtc(void* handle, const char* name, Args... arguments) {
  void* const found = ::dlsym(handle, name);
  if (found == nullptr) fail_compiler(fmt::format("NVRTC has no function {}; install another version of it", name));
  return reinterpret_cast<int (*)(Args...)>(found)(arguments...);
}

std::string nvrtc_error_text(void* handle, int code) {
  void* const found = ::dlsym(handle, "nvrtcGetErrorString");
  if (found == nullptr) return fmt::format("error {}", code);
  return reinterpret_cast<const char* (*)(int)>(found)(code);
}

/// A program of the compiler during its compilation.
class NvrtcCompilation {
 public:
  NvrtcCompilation(void* handle, const KernelSource& source) : handle_(handle) {
    check(call_nvrtc(handle_, "nvrtcCreateProgram", &program_, source.text.c_str(), source.name.c_str(), 0,
                     static_cast<const char* const*>(nullptr), static_cast<const char* const*>(nullptr)));
  }
  ~NvrtcCompilation() {
    if (void* const found = ::dlsym(handle_, "nvrtcDestroyProgram")) {
      reinterpret_cast<int (*)(NvrtcProgram*)>(found)(&program_);
    }
  }
  NvrtcCompilation(const NvrtcCompilation&) = delete;
  NvrtcCompilation& operator=(const NvrtcCompilation&) = delete;

  /// Returns NVRTC's code.
  int run(const std::vector<std::string>& options) {
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    return call_nvrtc(handle_, "nvrtcCompileProgram", program_, static_cast<int>(texts.size()),
                      static_cast<const char* const*>(texts.data()));
  }
  [[nodiscard]] std::string messages() const { return bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").c_str(); }
  [[nodiscard]] std::string binary() const { return bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN"); }

 private:
  [[nodiscard]] std::string bytes(const char* size_function, const char* function) const {
    size_t size = 0;
    check(call_nvrtc(handle_, size_function, program_, &size));
    std::string result(size, '\0');
    check(call_nvrtc(handle_, function, program_, result.data()));
    return result;
  }
  void check(int code) const {
    if (code != kNvrtcSuccess) fail_compiler("NVRTC failed: " + nvrtc_error_text(handle_, code));
  }

  void* handle_;
  NvrtcProgram program_ = nullptr;
};

/// The folder of a loaded library; empty if it is unknown.
std::filesystem::path folder_of(void* handle) {
  link_map* loaded = nullptr;
  const bool found = ::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) == 0;
  return found ? std::filesystem::path(loaded->l_name).parent_path() : std::filesystem::path();
}

/// The folder of LibTorch's libraries; empty if they are linked statically.
std::filesystem::path libtorch_folder() {
  void* const handle = ::dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return {};
  std::filesystem::path folder = folder_of(handle);
  ::dlclose(handle);
  return folder;
}

/// Loads the second library of NVRTC. NVRTC opens it by its name alone, so it would find it in the system's folders
/// only, or one of another version there.
void load_builtins_beside(void* compiler) {
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(compiler), missing)) {
    if (!entry.path().filename().string().starts_with("libnvrtc-builtins.so")) continue;
    static_cast<void>(::dlopen(entry.path().c_str(), RTLD_LAZY | RTLD_LOCAL));  // NVRTC reports its absence
  }
}

/// Paths of NVRTC in the folder, under any name: the archives of LibTorch add a hash to it.
std::vector<std::string> nvrtc_in(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    const std::string name = entry.path().filename().string();
    const bool compiler = name.starts_with("libnvrtc") && name.find("builtins") == std::string::npos &&
                          name.find(".alt.") == std::string::npos && name.find(".so") != std::string::npos;
    if (compiler) found.push_back(entry.path().string());
  }
  return found;
}

/// Paths of NVRTC beside LibTorch: in the same folder (archives), or in site-packages/nvidia/<package>/lib (PyPI).
std::vector<std::string> nvrtc_beside_libtorch() {
  const std::filesystem::path folder = libtorch_folder();
  if (folder.empty()) return {};
  std::vector<std::string> found = nvrtc_in(folder);
  std::error_code missing;
  const auto packages = folder.parent_path().parent_path() / "nvidia";
  for (const auto& package : std::filesystem::directory_iterator(packages, missing)) {
    const auto more = nvrtc_in(package.path() / "lib");
    found.insert(found.end(), more.begin(), more.end());
  }
  std::sort(found.begin(), found.end());
  std::stable_partition(found.begin(), found.end(),
                        [](const std::string& path) { return path.ends_with(nvrtc_names().front()); });
  return found;
}

}  // namespace

std::vector<std::string> nvrtc_libraries() {
  std::vector<std::string> libraries;
  const auto names = nvrtc_names(), beside = nvrtc_beside_libtorch();
  for (const std::string& name : names) {
    if (void* const handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      libraries.push_back(name);
      ::dlclose(handle);
    }
  }
  libraries.insert(libraries.end(), beside.begin(), beside.end());
  libraries.insert(libraries.end(), names.begin(), names.end());
  return libraries;
}

RuntimeCompiler::RuntimeCompiler(const std::vector<std::string>& libraries) {
  std::vector<std::string> reasons;
  for (const std::string& library : libraries) {
    handle_ = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle_ != nullptr) {
      library_ = library;
      break;
    }
    reasons.emplace_back(::dlerror());
  }
  if (handle_ == nullptr) {
    fail_compiler(fmt::format("NVRTC cannot be loaded ({}); install the PyPI package nvidia-cuda-nvrtc",
                              fmt::join(reasons, "; ")));
  }
  load_builtins_beside(handle_);
  int major = 0, minor = 0;
  const int code = call_nvrtc(handle_, "nvrtcVersion", &major, &minor);
  if (code != kNvrtcSuccess) fail_compiler("NVRTC failed: " + nvrtc_error_text(handle_, code));
  version_ = fmt::format("{}.{}", major, minor);
}

std::string RuntimeCompiler::compile(const KernelSource& source, const std::string& architecture) const {
  NvrtcCompilation compilation(handle_, source);
  std::vector<std::string> options = source.options;
  options.push_back("--gpu-architecture=" + architecture);
  const int code = compilation.run(options);
  if (code != kNvrtcSuccess) {
    fail_compiler(fmt::format("NVRTC {} cannot compile {} for {}: {}\n{}", version_, source.name, architecture,
                              nvrtc_error_text(handle_, code), compilation.messages()));
  }
  return compilation.binary();
}

}  // namespace accelerate::nn
