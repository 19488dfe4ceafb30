// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/base/error.hpp"
#include "launch/commands/checkpoint.hpp"
#include "launch/commands/text.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

// Compares the ranges of the manifest with the file's own header.
std::vector<std::string> wrong_ranges(const archive::Manifest& manifest, const std::string& file,
                                      const std::vector<Weight>& weights) {
  std::map<std::string_view, uint64_t> elements;
  for (const Weight& weight : weights) elements.emplace(weight.name, weight.elements);
  std::vector<std::string> wrong;
  for (const auto& range : manifest.ranges) {
    if (range.file != file) continue;
    const auto found = elements.find(range.key);
    if (found == elements.end()) {
      wrong.push_back(fmt::format("{} lacks {}, which is {}", file, range.key, range.tensor));
    } else if (found->second != range.end - range.begin) {
      wrong.push_back(fmt::format("{}: {} has {} elements, the manifest lists {}", file, range.key, found->second,
                                  range.end - range.begin));
    }
  }
  return wrong;
}

std::vector<std::string> wrong_in(const archive::Manifest& manifest, const archive::ManifestFile& file,
                                  const fs::path& folder, bool checksums) {
  if (auto wrong = archive::find_file_damage(file, folder, checksums)) return {*wrong};
  if (!file.name.ends_with(".safetensors")) return {};
  try {
    return wrong_ranges(manifest, file.name, read_weight_file(folder / file.name, kCheckpointProgram).weights);
  } catch (const Error& error) {
    return {error.what()};
  }
}

CommandResult verify_one(const fs::path& folder, bool checksums) {
  archive::Manifest manifest;
  try {
    manifest = archive::manifest_of(folder, kCheckpointProgram);
  } catch (const Error& error) {
    return {fmt::format("{}: {}\n", folder.string(), error.what()), 1};
  }
  std::string text;
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) {
    for (const auto& wrong : wrong_in(manifest, file, folder, checksums)) {
      text += fmt::format("{}: {}\n", folder.string(), wrong);
    }
    bytes += file.bytes;
  }
  if (!text.empty()) return {text, 1};
  return {fmt::format("{}: complete, {}, {}{}\n", folder.string(), counted(manifest.files.size(), "file"),
                      readable_bytes(bytes), checksums ? "" : " (checksums were not compared)")};
}

}  // namespace

CommandResult verify(const fs::path& folder, bool checksums) {
  std::vector<fs::path> folders{folder};
  if (!fs::exists(folder / archive::kManifestName)) {
    folders = archive::numbered_checkpoints(folder);
    if (folders.empty()) {
      base::fail(ErrorKind::io, {}, kCheckpointProgram, "{} has no {} and no folder checkpoint_N", folder.string(),
                 archive::kManifestName);
    }
  }
  CommandResult all;
  for (const fs::path& one : folders) {
    const CommandResult answer = verify_one(one, checksums);
    all.text += answer.text;
    all.code = std::max(all.code, answer.code);
  }
  return all;
}

}  // namespace accelerate::launch
