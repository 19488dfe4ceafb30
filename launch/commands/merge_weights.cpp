// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/merge_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "accelerate/archive/atomic_file.hpp"
#include "accelerate/archive/safetensors.hpp"
#include "accelerate/base/error.hpp"
#include "launch/commands/merge_parts.hpp"
#include "launch/commands/text.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMergeProgram = "accelerate_merge_weights";
constexpr std::string_view kIndexEnding = ".safetensors.index.json";

fs::path index_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kIndexEnding)) found.push_back(name);
  }
  if (error) base::fail(ErrorKind::io, {}, kMergeProgram, "{} cannot be read: {}", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  if (found.size() == 1) return folder / found.front();
  if (found.empty() && fs::exists(folder / "model.safetensors", error)) {
    base::fail(ErrorKind::usage, {}, kMergeProgram, "{} has no shards: its model.safetensors is one file already",
               folder.string());
  }
  if (found.empty()) {
    base::fail(ErrorKind::data, {}, kMergeProgram, "{} has no *{}, which lists the shards of a model", folder.string(),
               kIndexEnding);
  }
  base::fail(ErrorKind::usage, {}, kMergeProgram, "{} has {} indices ({}); name the file of one", folder.string(),
             found.size(), fmt::join(found, ", "));
}

// "model.safetensors.index.json" belongs to "model.safetensors".
fs::path place_of(const fs::path& out, const fs::path& index) {
  if (!fs::is_directory(out) && out.has_filename()) return out;
  const std::string name = index.stem().stem().string();
  return out / (name.ends_with(".safetensors") ? name : "model.safetensors");
}

// Metadata that is equal in all shards, and the tied tensors of each shard.
std::map<std::string, std::string> merged_metadata(const std::vector<WeightFile>& shards) {
  std::map<std::string, std::string> common = shards.front().metadata;
  for (const WeightFile& shard : shards) {
    std::erase_if(common, [&](const auto& entry) {
      const auto found = shard.metadata.find(entry.first);
      return found == shard.metadata.end() || found->second != entry.second;
    });
  }
  for (const WeightFile& shard : shards) common.insert(shard.ties.begin(), shard.ties.end());
  return common;
}

uint64_t write_merged(const std::vector<WeightFile>& shards, archive::FileSink& sink) {
  std::vector<archive::SafetensorsEntry> entries;
  std::map<std::string_view, std::string_view> bytes;
  for (const WeightFile& shard : shards) {
    for (const Weight& weight : shard.weights) {
      entries.push_back({.name = weight.name, .dtype = weight.dtype, .shape = weight.shape});
      bytes.emplace(weight.name, weight.data);
    }
  }
  sink.write(archive::write_safetensors(entries, merged_metadata(shards), kMergeProgram));
  for (const auto& entry : entries) sink.write(bytes.at(entry.name));
  return entries.size();
}

std::vector<WeightFile> shards_of(const fs::path& index) {
  std::vector<WeightFile> shards = read_sharded(index, kMergeProgram);
  if (shards.empty()) base::fail(ErrorKind::data, {}, kMergeProgram, "{}: the index lists no tensor", index.string());
  for (const WeightFile& shard : shards) {
    if (shard.others.empty() && shard.file->path().extension() == ".safetensors") continue;
    base::fail(ErrorKind::data, {}, kMergeProgram, "{} is not a safetensors file", shard.file->path().string());
  }
  return shards;
}

// \param write  Writes the file and returns the number of tensors.
CommandResult write_to(const fs::path& place, bool overwrite, const std::string& source,
                       const std::function<uint64_t(archive::FileSink&)>& write) {
  if (!overwrite && fs::exists(place)) {
    base::fail(ErrorKind::usage, {}, kMergeProgram, "{} already exists; --overwrite replaces it", place.string());
  }
  archive::AtomicFile file(place, kMergeProgram);
  const uint64_t tensors = write(file.sink());
  const uint64_t bytes = file.sink().written();
  file.commit(overwrite ? archive::Existing::replace : archive::Existing::keep);
  return {fmt::format("{}: {} of {}, {}\n", place.string(), counted(tensors, "tensor"), source, readable_bytes(bytes))};
}

}  // namespace

CommandResult merge_weights(const Arguments& arguments) {
  CommandLine line(std::string(kMergeProgram),
                   "Makes one safetensors file of a sharded model, or of a checkpoint of which each rank saved its "
                   "parts.\nOUT is complete or does not exist: the new file is written beside it, flushed to disk and "
                   "renamed.\n",
                   {"accelerate_merge_weights big_model merged.safetensors",
                    "accelerate_merge_weights checkpoints/checkpoint_3 merged.safetensors",
                    "accelerate_merge_weights --overwrite big_model/model.safetensors.index.json merged/"});
  std::string from;
  std::string out;
  int64_t model = 0;
  bool overwrite = false;
  line.app()
      .add_option("DIR", from, "Folder with model.safetensors.index.json and its shards, that file, or a checkpoint")
      ->required();
  line.app().add_option("OUT", out, "File to write. In an existing folder, the file is model.safetensors")->required();
  line.app()
      .add_option("--model", model, "Index of the model in a checkpoint with several; default 0")
      ->check(CLI::NonNegativeNumber);
  line.app().add_flag("--overwrite", overwrite, "Replace an existing file, which is otherwise an error.");
  if (auto answer = line.parse(arguments)) return *answer;

  if (fs::is_directory(from) && has_model_in_parts(from, model)) {
    ModelInParts parts = read_parts(from, model, kMergeProgram);
    const std::string source = counted(parts.files.size(), "file");
    const size_t tensors = parts.entries.size();
    return write_to(place_of(out, "model.safetensors.index.json"), overwrite, source, [&](archive::FileSink& sink) {
      write_parts(std::move(parts), sink, kMergeProgram);
      return tensors;
    });
  }
  const fs::path index = fs::is_directory(from) ? index_in(from) : fs::path(from);
  const std::vector<WeightFile> shards = shards_of(index);
  return write_to(place_of(out, index), overwrite, counted(shards.size(), "shard"),
                  [&](archive::FileSink& sink) { return write_merged(shards, sink); });
}

}  // namespace accelerate::launch
