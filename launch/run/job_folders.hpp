// SPDX-License-Identifier: Apache-2.0
// Where files of one start of the workers lie. The guardian makes the folders and removes them; the launcher decides
// where, so that it can remove them when the guardian was killed.
#pragma once

#include <memory>
#include <string>

#include "launch/pmix/private_folder.hpp"

namespace accelerate::launch {

struct JobFolderPlaces {
  FolderPlace temporary = place_for_temporary_files();
  FolderPlace shared_memory = place_for_shared_memory();

  void remove() const {
    remove_folder(temporary.path());
    remove_folder(shared_memory.path());
  }
};

struct JobFolders {
  /// shares_memory   MPI's ranks do, with one another
  /// Throws LaunchError (1) where no folder can be made.
  JobFolders(const JobFolderPlaces& places, bool shares_memory)
      : temporary(places.temporary),
        shared(shares_memory ? std::make_unique<PrivateFolder>(places.shared_memory) : nullptr) {}

  [[nodiscard]] std::string shared_memory() const { return shared ? shared->path() : ""; }

  PrivateFolder temporary;
  std::unique_ptr<PrivateFolder> shared;
};

}  // namespace accelerate::launch
