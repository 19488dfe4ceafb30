// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/kernel_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/archive/atomic_file.hpp"
#include "accelerate/archive/checksum.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/env/parse.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kKernelOperation = "linear_cross_entropy";
// A file of more bytes is not a kernel.
constexpr off_t kMaxFileBytes = off_t{256} << 20;

/// First line of a file.
std::string kernel_header(std::string_view binary) {
  return "accelerate kernel 1 " + archive::checksum_of(binary) + "\n";
}

/// Opens the folder if nobody else can put a file into it.
base::FileDescriptor open_private_folder(const std::filesystem::path& folder) {
  base::FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!opened || ::fstat(opened.get(), &facts) != 0) return {};
  if (facts.st_uid == ::geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0) return opened;
  base::log(base::LogLevel::debug, {}, "{} is not used as a cache of kernels, because others can write to it",
            folder.string());
  return {};
}

std::optional<std::string> read_whole(int folder, const std::string& name) {
  const base::FileDescriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  if (facts.st_size > kMaxFileBytes) return std::nullopt;
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    filled += static_cast<size_t>(count);
  }
  return bytes;
}

}  // namespace

std::filesystem::path kernel_cache_folder(const env::Variables& variables) {
  const std::filesystem::path cache = env::find(variables, "XDG_CACHE_HOME").value_or("");
  if (cache.is_absolute()) return cache / "accelerate" / "kernels";
  const std::filesystem::path home = env::find(variables, "HOME").value_or("");
  return home.is_absolute() ? home / ".cache" / "accelerate" / "kernels" : std::filesystem::path();
}

std::optional<std::string> KernelCache::read(const std::string& name) const {
  if (folder_.empty()) return std::nullopt;
  const base::FileDescriptor folder = open_private_folder(folder_);
  if (!folder) return std::nullopt;
  auto bytes = read_whole(folder.get(), name);
  if (!bytes) return std::nullopt;
  const auto end = bytes->find('\n');
  std::string binary = end == std::string::npos ? std::string() : bytes->substr(end + 1);
  if (!binary.empty() && bytes->substr(0, end + 1) == kernel_header(binary)) return binary;
  base::log(base::LogLevel::debug, {}, "{} is damaged; the kernel is compiled again", (folder_ / name).string());
  return std::nullopt;
}

void KernelCache::write(const std::string& name, std::string_view binary) const {
  if (folder_.empty()) return;
  try {
    std::filesystem::create_directories(folder_.parent_path());
    if (::mkdir(folder_.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      base::fail(ErrorKind::io, {}, kKernelOperation, "{} cannot be created: {}", folder_.string(),
                 std::strerror(errno));
    }
    if (!open_private_folder(folder_)) return;
    archive::AtomicFile file(folder_ / name, kKernelOperation);
    file.sink().write(kernel_header(binary));
    file.sink().write(binary);
    file.commit(archive::Existing::replace);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::debug, {}, "a compiled kernel is not cached: {}", error.what());
  }
}

std::string compiled_kernel(const RuntimeCompiler& compiler, const KernelSource& source,
                            const std::string& architecture, const KernelCache& cache) {
  std::string facts = compiler.version() + '\0' + architecture + '\0' + source.text;
  for (const std::string& option : source.options) facts += '\0' + option;
  const std::string name = source.name + "-" + architecture + "-" + archive::checksum_of(facts) + ".cubin";
  if (auto cached = cache.read(name)) return *std::move(cached);
  std::string binary = compiler.compile(source, architecture);
  cache.write(name, binary);
  return binary;
}

}  // namespace accelerate::nn
