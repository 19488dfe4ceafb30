// SPDX-License-Identifier: Apache-2.0
// Compilation of kernels by the NVRTC beside LibTorch, without driver and GPU, and their files in the cache.
#include "tests/testing.hpp"
//
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/nn/cross_entropy_kernel.hpp"
#include "accelerate/nn/kernel_cache.hpp"
#include "accelerate/nn/runtime_compiler.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::nn::compiled_kernel;
using accelerate::nn::kernel_cache_folder;
using accelerate::nn::KernelCache;
using accelerate::nn::KernelSource;
using accelerate::nn::RuntimeCompiler;
using testing::TemporaryFolder;

namespace {

const KernelSource small_kernel{.name = "small.cu", .text = "extern \"C\" __global__ void small(int* x) { *x = 1; }"};

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

void overwrite(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

// The folder of a loaded library, with its links followed.
std::filesystem::path folder_of_loaded(const std::string& name) {
  void* const handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  link_map* loaded = nullptr;
  REQUIRE(handle != nullptr);
  REQUIRE(::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) == 0);
  auto folder = std::filesystem::canonical(loaded->l_name).parent_path();
  ::dlclose(handle);
  return folder;
}

}  // namespace

TEST_CASE("NVRTC's second library is loaded from the folder of the first") {
  const RuntimeCompiler compiler;
  CHECK(compiler.compile(small_kernel, "sm_90").starts_with("\x7f"));
  CHECK(folder_of_loaded("libnvrtc-builtins.so." + compiler.version()) == folder_of_loaded(compiler.library()));
}

TEST_CASE("NVRTC compiles the cross-entropy kernel for sm_80 and sm_90 without a driver") {
  const RuntimeCompiler compiler;
  CHECK(compiler.library().find("libnvrtc") != std::string::npos);
  CHECK(std::stoi(compiler.version()) == CUDA_VERSION / 1000);
  std::vector<std::string> binaries;
  for (const char* architecture : {"sm_80", "sm_90"}) {
    binaries.push_back(compiler.compile(accelerate::nn::cross_entropy_source(), architecture));
    CHECK(
        binaries.back().starts_with("\x7f"
                                    "ELF"));
    for (const char* function : {"cross_entropy_float32", "cross_entropy_bfloat16", "cross_entropy_float16"}) {
      CHECK(binaries.back().find(function) != std::string::npos);
    }
  }
  CHECK(binaries[0] != binaries[1]);
}

TEST_CASE("NVRTC that is loaded already is tried first") {
  const RuntimeCompiler compiler;
  CHECK(accelerate::nn::nvrtc_libraries().front().starts_with("libnvrtc.so"));
  CHECK(RuntimeCompiler().version() == compiler.version());
}

TEST_CASE(
    "a missing or foreign compiler, a fault in the text and an unknown architecture are errors with their reason") {
  CHECK_THROWS_WITH_AS(
      RuntimeCompiler({"/no/libnvrtc.so.1", "/no/libnvrtc.so"}),
      "linear_cross_entropy: NVRTC cannot be loaded (/no/libnvrtc.so.1: cannot open shared object file: No such file "
      "or "
      "directory; /no/libnvrtc.so: cannot open shared object file: No such file or directory); install the PyPI "
      "package nvidia-cuda-nvrtc",
      accelerate::Error);
  CHECK_THROWS_WITH_AS(RuntimeCompiler({"libm.so.6"}),
                       "linear_cross_entropy: NVRTC has no function nvrtcVersion; install another version of it",
                       accelerate::Error);
  const RuntimeCompiler compiler;
  const std::string version = "linear_cross_entropy: NVRTC " + compiler.version();
  CHECK_THROWS_WITH_AS(
      (void)compiler.compile({.name = "broken.cu", .text = "__global__ void broken(int* x) { *x = y; }"}, "sm_90"),
      doctest::Contains((version + " cannot compile broken.cu for sm_90: NVRTC_ERROR_COMPILATION\n"
                                   "broken.cu(1): error: identifier \"y\" is undefined")
                            .c_str()),
      accelerate::Error);
  CHECK_THROWS_WITH_AS(
      (void)compiler.compile(small_kernel, "sm_1"),
      doctest::Contains((version + " cannot compile small.cu for sm_1: NVRTC_ERROR_INVALID_OPTION").c_str()),
      accelerate::Error);
}

TEST_CASE("without NVRTC a device has no kernel, and one warning with the reason is logged") {
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  accelerate::nn::CrossEntropyKernels kernels([](c10::Device) -> std::unique_ptr<accelerate::nn::CrossEntropyKernel> {
    (void)RuntimeCompiler({"/no/libnvrtc.so"});
    return nullptr;
  });
  for (int i = 0; i < 2; ++i) CHECK(kernels.of(c10::Device(c10::kCUDA, 0)) == nullptr);
  accelerate::base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{
                     "the fused kernel of linear_cross_entropy is not used on cuda:0, LibTorch's operators are: "
                     "linear_cross_entropy: NVRTC cannot be loaded (/no/libnvrtc.so: cannot open shared object file: "
                     "No such file or directory); install the PyPI package nvidia-cuda-nvrtc"});
}

TEST_CASE("the cache is in XDG_CACHE_HOME, or in .cache of HOME") {
  CHECK(kernel_cache_folder({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}) == "/c/accelerate/kernels");
  CHECK(kernel_cache_folder({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/h"}}) == "/h/.cache/accelerate/kernels");
  CHECK(kernel_cache_folder({{"XDG_CACHE_HOME", ""}, {"HOME", "/h"}}) == "/h/.cache/accelerate/kernels");
  CHECK(kernel_cache_folder({}).empty());
}

TEST_CASE("a kernel is compiled once and read from its file afterwards") {
  const TemporaryFolder home;
  const auto folder = home.path / "accelerate" / "kernels";
  const RuntimeCompiler compiler;
  const KernelCache cache(folder);
  const std::string binary = compiled_kernel(compiler, small_kernel, "sm_90", cache);
  CHECK(binary == compiler.compile(small_kernel, "sm_90"));
  REQUIRE(files_in(folder).size() == 1);
  const std::string name = files_in(folder)[0].filename();
  CHECK(name.starts_with("small.cu-sm_90-"));
  CHECK(cache.read(name) == binary);
  struct stat facts {};
  REQUIRE(::stat(folder.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0700);

  cache.write(name, "another binary");
  CHECK(compiled_kernel(compiler, small_kernel, "sm_90", cache) == "another binary");
  KernelSource changed = small_kernel;
  changed.options.emplace_back("--std=c++17");
  CHECK(compiled_kernel(compiler, changed, "sm_90", cache).starts_with("\x7f"));
  changed.text += " ";
  CHECK(compiled_kernel(compiler, changed, "sm_90", cache).starts_with("\x7f"));
  CHECK(compiled_kernel(compiler, small_kernel, "sm_80", cache).starts_with("\x7f"));
  CHECK(files_in(folder).size() == 4);
}

TEST_CASE("a damaged file is compiled again and replaced") {
  const TemporaryFolder home;
  const auto folder = home.path / "kernels";
  const RuntimeCompiler compiler;
  const KernelCache cache(folder);
  const std::string binary = compiled_kernel(compiler, small_kernel, "sm_90", cache);
  const auto file = files_in(folder).at(0);
  const std::string whole = testing::text_of(file);
  std::string flipped = whole;
  flipped[flipped.size() / 2] ^= 1;
  const std::string header = whole.substr(0, whole.find('\n') + 1);
  for (const std::string& bytes :
       {flipped, whole.substr(0, whole.size() - 1), whole + "x", header, std::string(), binary}) {
    overwrite(file, bytes);
    CHECK_FALSE(cache.read(file.filename()));
    CHECK(compiled_kernel(compiler, small_kernel, "sm_90", cache) == binary);
    CHECK(testing::text_of(file) == whole);
  }
  std::filesystem::resize_file(file, uintmax_t{1} << 40);
  CHECK_FALSE(cache.read(file.filename()));
  CHECK(compiled_kernel(compiler, small_kernel, "sm_90", cache) == binary);
  CHECK(testing::text_of(file) == whole);
}

TEST_CASE("without a usable folder a kernel is compiled each time") {
  const TemporaryFolder home;
  const RuntimeCompiler compiler;
  const std::string binary = compiler.compile(small_kernel, "sm_90");
  overwrite(home / "file", "");
  for (const std::string& folder : {std::string(), home / "file/kernels", home / "file"}) {
    CHECK(compiled_kernel(compiler, small_kernel, "sm_90", KernelCache(folder)) == binary);
  }
  CHECK(testing::text_of(home / "file").empty());
}

TEST_CASE("a folder that others can write to, a linked folder and a linked file are neither read nor written") {
  const TemporaryFolder home;
  const auto folder = home.path / "kernels", link = home.path / "link";
  const RuntimeCompiler compiler;
  const KernelCache cache(folder);
  const std::string binary = compiled_kernel(compiler, small_kernel, "sm_90", cache);
  const std::string name = files_in(folder).at(0).filename();
  std::filesystem::create_directory_symlink(folder, link);
  CHECK_FALSE(KernelCache(link).read(name));
  for (const mode_t mode : {0770, 0707}) {
    REQUIRE(::chmod(folder.c_str(), mode) == 0);
    CHECK_FALSE(cache.read(name));
    cache.write("more", "bytes");
    CHECK(files_in(folder).size() == 1);
  }
  REQUIRE(::chmod(folder.c_str(), 0755) == 0);
  CHECK(cache.read(name) == binary);
  std::filesystem::rename(folder / name, home.path / "moved");
  std::filesystem::create_symlink(home.path / "moved", folder / name);
  CHECK_FALSE(cache.read(name));
}
