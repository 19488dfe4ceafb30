// SPDX-License-Identifier: Apache-2.0
// Private: compiled kernels on disk, for the next process.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/env/process_env.hpp"
#include "accelerate/nn/runtime_compiler.hpp"

namespace accelerate::nn {

/// Returns $XDG_CACHE_HOME/accelerate/kernels, or ~/.cache/accelerate/kernels; empty without both variables.
[[nodiscard]] std::filesystem::path kernel_cache_folder(const env::Variables& variables);

/// Files in a folder of this user. A folder of another user, or one that others may write to, is not used, because the
/// files are machine code. Every failure only means that the kernel is compiled again; it is logged at the level debug.
class KernelCache {
 public:
  /// \param folder  write() creates it. If it is empty, nothing is cached.
  explicit KernelCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Returns the binary of the file, or nothing if the file is missing or damaged.
  [[nodiscard]] std::optional<std::string> read(const std::string& name) const;
  /// Writes the file completely or not at all, also if several processes write it.
  void write(const std::string& name, std::string_view binary) const;

 private:
  std::filesystem::path folder_;
};

/// Returns the CUBIN from the cache, or compiles and caches it. The name of its file has the architecture and a hash of
/// text, options, and the compiler's version.
[[nodiscard]] std::string compiled_kernel(const RuntimeCompiler& compiler, const KernelSource& source,
                                          const std::string& architecture, const KernelCache& cache);

}  // namespace accelerate::nn
