// SPDX-License-Identifier: Apache-2.0
// Finds the image files in a folder of classes by name, without opening a file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::data {

inline constexpr std::string_view kFolderOperation = "image_folder";

struct ImageClass {
  std::string name;  ///< name of the folder
  std::vector<std::filesystem::path> images;
};

/// Returns the classes in the order of their names, with their images in the order of torchvision's ImageFolder: by
/// folder, then by file name.
///
/// Omits hidden folders (".ipynb_checkpoints") and images of unsupported formats (".bmp"). A warning lists the folders
/// and the number of files of each format. A linked folder that contains itself is visited once.
///
/// \throws Error (io) if a folder cannot be read; Error (data) if there is no class or a class has no images.
[[nodiscard]] std::vector<ImageClass> find_images(const std::filesystem::path& folder);

}  // namespace accelerate::data
