// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/image_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <system_error>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/base/terminal_text.hpp"

namespace accelerate::data {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr std::array<std::string_view, 3> kImageExtensions{".jpg", ".jpeg", ".png"};
constexpr std::array<std::string_view, 12> kOtherExtensions{".avif", ".bmp", ".gif", ".heic", ".jp2",  ".pbm",
                                                            ".pgm",  ".pnm", ".ppm", ".tif",  ".tiff", ".webp"};

/// Omitted files and folders.
struct LeftOutFiles {
  std::map<std::string, int64_t> counts;  ///< images of unsupported formats, by extension
  Paths hidden;                           ///< hidden folders
};

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

template <size_t count>
bool is_one_of(const std::array<std::string_view, count>& extensions, const std::string& extension) {
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

bool is_folder(const fs::path& path) {
  std::error_code unknown;
  return fs::is_directory(path, unknown);
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool by_bytes(const fs::path& a, const fs::path& b) { return a.native() < b.native(); }

Paths sorted_entries(const fs::path& folder) {
  std::error_code problem;
  Paths entries;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem))
    entries.push_back(entry->path());
  if (problem)
    base::fail(ErrorKind::io, {}, kFolderOperation, "{} cannot be read: {}", folder.string(), problem.message());
  std::sort(entries.begin(), entries.end(), by_bytes);
  return entries;
}

// `within` has the canonical paths of the parent folders: a link to one of them is ignored.
void add_folders(const fs::path& folder, Paths& folders, LeftOutFiles& left_out, Paths within = {}) {
  std::error_code unknown;
  const auto place = fs::canonical(folder, unknown);
  if (std::find(within.begin(), within.end(), place) != within.end()) return;
  within.push_back(place);
  folders.push_back(folder);
  for (const auto& entry : sorted_entries(folder)) {
    if (!is_folder(entry)) continue;
    is_hidden(entry) ? left_out.hidden.push_back(entry) : add_folders(entry, folders, left_out, within);
  }
}

// Sorts the folders by their full paths, as torchvision does: "a-b" precedes "a/b".
Paths images_in(const fs::path& folder, LeftOutFiles& left_out) {
  Paths folders;
  add_folders(folder, folders, left_out);
  std::sort(folders.begin(), folders.end(), by_bytes);
  Paths images;
  for (const auto& one : folders) {
    for (const auto& entry : sorted_entries(one)) {
      const auto extension = extension_of(entry);
      const bool is_image = is_one_of(kImageExtensions, extension);
      if ((!is_image && !is_one_of(kOtherExtensions, extension)) || is_folder(entry)) continue;
      if (is_image) {
        images.push_back(entry);
      } else {
        ++left_out.counts[extension];
      }
    }
  }
  return images;
}

/// Returns "2 .bmp, 1 .webp".
std::string listed_counts(const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> texts;
  for (const auto& [extension, count] : counts) texts.push_back(fmt::format("{} {}", count, extension));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void warn_of(const LeftOutFiles& left_out, const fs::path& folder) {
  constexpr size_t max_named = 5;
  if (!left_out.counts.empty())
    base::log_once(
        base::LogLevel::warning, {},
        "image_folder: {}: images of formats that are not read are left out: {}; convert them to PNG or JPEG",
        folder.string(), listed_counts(left_out.counts));
  if (left_out.hidden.empty()) return;
  const size_t prefix = (folder / "x").native().size() - 1;  // LibTorch exports its own lexically_relative()
  std::vector<std::string> names;
  for (const auto& hidden : left_out.hidden)
    if (names.size() < max_named) names.push_back(base::quote_for_terminal(hidden.native().substr(prefix)));
  const size_t more = left_out.hidden.size() - names.size();
  base::log_once(base::LogLevel::warning, {}, "image_folder: {}: hidden folders are left out: {}{}", folder.string(),
                 fmt::join(names, ", "), more == 0 ? "" : fmt::format(", and {} more", more));
}

}  // namespace

std::vector<ImageClass> find_images(const fs::path& folder) {
  std::vector<ImageClass> classes;
  LeftOutFiles left_out;
  for (const auto& entry : sorted_entries(folder)) {
    if (!is_folder(entry)) continue;
    if (is_hidden(entry)) {
      left_out.hidden.push_back(entry);
      continue;
    }
    LeftOutFiles of_class;
    auto images = images_in(entry, of_class);
    if (images.empty()) {
      const auto found = listed_counts(of_class.counts);
      base::fail(ErrorKind::data, {}, kFolderOperation, "{} has no images: expected .jpg, .jpeg or .png files{}",
                 entry.string(), found.empty() ? "" : fmt::format(", found {}; convert them to PNG or JPEG", found));
    }
    classes.push_back({entry.filename().string(), std::move(images)});
    for (const auto& [extension, count] : of_class.counts) left_out.counts[extension] += count;
    left_out.hidden.insert(left_out.hidden.end(), of_class.hidden.begin(), of_class.hidden.end());
  }
  if (classes.empty())
    base::fail(ErrorKind::data, {}, kFolderOperation,
               "{} has no folders: expected one for each class, with .jpg, .jpeg or .png files in it", folder.string());
  warn_of(left_out, folder);
  return classes;
}

}  // namespace accelerate::data
