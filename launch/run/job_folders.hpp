// SPDX-License-Identifier: Apache-2.0
// Folders for the files of one restart attempt. The guardian creates and removes them. The launcher chooses their
// paths, so that it can remove them if the guardian is killed.
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
  /// \param shares_memory  Creates the shared-memory folder that MPI ranks need.
  /// \throws LaunchError (1) if a folder cannot be created.
  JobFolders(const JobFolderPlaces& places, bool shares_memory)
      : temporary(places.temporary),
        shared(shares_memory ? std::make_unique<PrivateFolder>(places.shared_memory) : nullptr) {}

  [[nodiscard]] std::string shared_memory() const { return shared ? shared->path() : ""; }

  PrivateFolder temporary;
  std::unique_ptr<PrivateFolder> shared;
};

}  // namespace accelerate::launch
