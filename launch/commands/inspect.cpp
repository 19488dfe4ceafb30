// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/terminal_text.hpp"
#include "launch/commands/checkpoint.hpp"
#include "launch/commands/text.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (const auto wrong = archive::find_damage(folder, false)) return fmt::format("{}: {}\n", name, *wrong);
  const archive::Manifest manifest = archive::manifest_of(folder, kCheckpointProgram);
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  return fmt::format("{}: step {}, epoch {}, {} in {}\n", name, manifest.step, manifest.epoch, readable_bytes(bytes),
                     counted(manifest.files.size(), "file"));
}

std::string parts_of(const archive::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& part : manifest.parts) {
    rows.push_back({fmt::format("{} {}", base::escape_for_terminal(part.kind), part.index),
                    fmt::format("{}", fmt::join(part.files, " "))});
  }
  std::string text = "parts:\n";
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row[0].size());
  for (const auto& row : rows) text += fmt::format("  {:<{}}  {}\n", row[0], width, row[1]);
  return text;
}

std::string files_of(const archive::Manifest& manifest) {
  std::vector<std::vector<std::string>> rows{{"file", "bytes", "checksum"}};
  for (const auto& file : manifest.files)
    rows.push_back({file.name, with_commas(file.bytes), base::escape_for_terminal(file.checksum)});
  return table_of(rows);
}

// Parts of tensors by file and name in it: "elements 0 to 3 of [5]".
std::map<std::pair<std::string, std::string>, std::string> elements_of_parts(const archive::Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, std::string> parts;
  for (const auto& range : manifest.ranges) {
    if (!range.file.starts_with("parts_")) continue;
    parts.emplace(std::pair(range.file, range.key),
                  fmt::format("elements {} to {} of {}", range.begin, range.end, text_of_shape(range.sizes)));
  }
  return parts;
}

// Tensors of all files that contain any.
std::string tensors_of(const archive::Manifest& manifest, const fs::path& folder) {
  const auto parts = elements_of_parts(manifest);
  std::string text = "tensors:\n";
  for (const auto& file : manifest.files) {
    try {
      for (const Weight& weight : read_weight_file(folder / file.name, kCheckpointProgram).weights) {
        const auto part = parts.find({file.name, weight.name});
        text += fmt::format("  {} {} {} in {}\n", base::escape_for_terminal(weight.name), weight.dtype,
                            part == parts.end() ? text_of_shape(weight.shape) : part->second, file.name);
      }
    } catch (const Error& error) {
      if (!file.name.ends_with(".json")) text += fmt::format("  {}\n", base::escape_for_terminal(error.what()));
    }
  }
  return text;
}

}  // namespace

CommandResult inspect(const fs::path& folder, bool tensors) {
  if (!fs::exists(folder / archive::kManifestName)) {
    std::string text;
    for (const fs::path& one : archive::numbered_checkpoints(folder)) text += line_of(one);
    if (!text.empty()) return {text};
    base::fail(ErrorKind::io, {}, kCheckpointProgram, "{} has no {} and no folder checkpoint_N", folder.string(),
               archive::kManifestName);
  }
  const archive::Manifest manifest = archive::manifest_of(folder, kCheckpointProgram);
  uint64_t bytes = 0;
  for (const auto& file : manifest.files) bytes += file.bytes;
  std::string text =
      fmt::format("{}: step {}, epoch {}, {}, {}\nwritten by {}, format {}\n\n", folder.string(), manifest.step,
                  manifest.epoch, counted(static_cast<uint64_t>(manifest.world_size), "rank"), readable_bytes(bytes),
                  base::escape_for_terminal(manifest.library), manifest.version);
  text += parts_of(manifest) + "\n" + files_of(manifest);
  if (tensors) text += "\n" + tensors_of(manifest, folder);
  return {text};
}

}  // namespace accelerate::launch
