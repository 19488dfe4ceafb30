// SPDX-License-Identifier: Apache-2.0
// Where files of one start of the workers lie. They go with it.
#pragma once

#include <memory>
#include <string>

#include "launch/pmix/private_folder.hpp"

namespace accelerate::launch {

struct JobFolders {
  /// with_mpi   MPI's ranks share memory with one another
  /// Throws LaunchError (1) where no folder can be made.
  explicit JobFolders(bool with_mpi) {
    if (with_mpi) shared.reset(new PrivateFolder(folder_for_shared_memory()));  // which cannot be moved
  }

  [[nodiscard]] std::string shared_memory() const { return shared ? shared->path() : ""; }
  /// Before the end of this object: for a process that does not live to see it.
  void remove() const {
    temporary.remove();
    if (shared) shared->remove();
  }

  PrivateFolder temporary = folder_for_temporary_files();
  std::unique_ptr<PrivateFolder> shared{};
};

}  // namespace accelerate::launch
