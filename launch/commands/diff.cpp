// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/terminal_text.hpp"
#include "launch/commands/checkpoint.hpp"
#include "launch/commands/elements.hpp"
#include "launch/commands/text.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

// The differences in one file, one line each.
class Differences {
 public:
  Differences(std::string file, size_t most) : file_(std::move(file)), most_(most) {}

  void add(const std::string& line) {
    if (count_++ < most_) text_ += fmt::format("{}: {}\n", file_, base::escape_for_terminal(line));
  }
  [[nodiscard]] std::string text() const {
    if (count_ <= most_) return text_;
    return text_ + fmt::format("{}: and {}\n", file_, counted(count_ - most_, "more difference"));
  }

 private:
  std::string file_, text_;
  size_t most_, count_ = 0;
};

// Calls each(name, left or null, right or null) for all names, first in the order of left.
template <typename Value, typename Each>
void for_names_of_both(const std::vector<std::pair<std::string, Value>>& left,
                       const std::vector<std::pair<std::string, Value>>& right, const Each& each) {
  std::map<std::string_view, const Value*> others;
  for (const auto& [name, value] : right) others.emplace(name, &value);
  std::set<std::string_view> seen;
  for (const auto& [name, value] : left) {
    const auto other = others.find(name);
    if (seen.insert(name).second) each(name, &value, other == others.end() ? nullptr : other->second);
  }
  for (const auto& [name, value] : right) {
    if (seen.insert(name).second) each(name, static_cast<const Value*>(nullptr), &value);
  }
}

std::string kind_of(const Weight& weight) { return weight.dtype + " " + text_of_shape(weight.shape); }

// Returns nothing if the weights are equal.
std::optional<std::string> compared(const Weight& a, const Weight& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return fmt::format("is {}, {}", kind_of(a), kind_of(b));
  if (a.data.size() != a.bytes || b.data.size() != b.bytes)
    return "is not row-major in the file, or has its conj or neg bit set; not compared";
  if (a.elements == 0) return std::nullopt;
  const ElementDifference difference = compare_elements(a.dtype, a.bytes * 8 / a.elements, a.data, b.data);
  if (difference.elements == 0) return std::nullopt;
  std::string text = fmt::format("{} of {} elements differ", with_commas(difference.elements), with_commas(a.elements));
  if (difference.largest) {
    const int digits = a.dtype.ends_with("64") ? 20 : 9;  // enough for any 64-bit integer or double
    text += fmt::format(", most by {:.6g}: {:.{}g}, {:.{}g} at {}", *difference.largest, difference.left, digits,
                        difference.right, digits, difference.index);
  }
  return text;
}

void compare_contents(const WeightFile& left, const WeightFile& right, Differences& differences) {
  const auto named = [](const WeightFile& file) {
    std::vector<std::pair<std::string, Weight>> all;
    for (const Weight& weight : file.weights) all.emplace_back(weight.name, weight);
    return all;
  };
  for_names_of_both(named(left), named(right), [&](std::string_view name, const Weight* a, const Weight* b) {
    if (a == nullptr || b == nullptr) return differences.add(fmt::format("{} is only in {}", name, a ? "A" : "B"));
    if (const auto line = compared(*a, *b)) differences.add(fmt::format("{} {}", name, *line));
  });
  const auto compare_texts = [&](std::string_view name, const std::string* a, const std::string* b) {
    if (a == nullptr || b == nullptr) return differences.add(fmt::format("{} is only in {}", name, a ? "A" : "B"));
    if (*a != *b) differences.add(fmt::format("{} is {}, {}", name, *a, *b));
  };
  for_names_of_both(left.others, right.others, compare_texts);
  const auto metadata = [](const WeightFile& file) {
    return std::vector<std::pair<std::string, std::string>>(file.metadata.begin(), file.metadata.end());
  };
  for_names_of_both(metadata(left), metadata(right), compare_texts);
}

std::string compare_files(const std::string& name, const fs::path& left, const fs::path& right, size_t most) {
  const archive::MappedFile a(left, kCheckpointProgram);
  const archive::MappedFile b(right, kCheckpointProgram);
  if (a.text() == b.text()) return "";
  Differences differences(name, most);
  try {
    compare_contents(read_weight_file(left, kCheckpointProgram), read_weight_file(right, kCheckpointProgram),
                     differences);
    // May be empty: other programs write equal values with other bytes around them.
    return differences.text();
  } catch (const Error&) {
    return fmt::format("{}: the bytes differ ({}, {})\n", name, with_commas(a.size()), with_commas(b.size()));
  }
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  if (fs::exists(folder / archive::kManifestName)) {
    for (const auto& file : archive::manifest_of(folder, kCheckpointProgram).files) names.insert(file.name);
    return names;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) names.insert(entry.path().filename().string());
  }
  if (error)
    base::fail(ErrorKind::io, {}, kCheckpointProgram, "{} cannot be read: {}", folder.string(), error.message());
  return names;
}

std::string compare_manifests(const fs::path& left, const fs::path& right) {
  if (!fs::exists(left / archive::kManifestName) || !fs::exists(right / archive::kManifestName)) return "";
  const auto a = archive::manifest_of(left, kCheckpointProgram);
  const auto b = archive::manifest_of(right, kCheckpointProgram);
  std::string text;
  const auto compare = [&](const char* what, const auto& one, const auto& other) {
    if (one != other) text += base::escape_for_terminal(fmt::format("{}: {}, {}", what, one, other)) + "\n";
  };
  compare("step", a.step, b.step);
  compare("epoch", a.epoch, b.epoch);
  compare("ranks", a.world_size, b.world_size);
  compare("library", a.library, b.library);
  return text;
}

std::string compare_folders(const fs::path& left, const fs::path& right, size_t most) {
  std::string text = compare_manifests(left, right);
  const auto of_left = files_in(left);
  const auto of_right = files_in(right);
  std::set<std::string> all = of_left;
  all.insert(of_right.begin(), of_right.end());
  for (const std::string& name : all) {
    if (of_left.contains(name) && of_right.contains(name)) {
      text += compare_files(name, left / name, right / name, most);
    } else {
      text += fmt::format("{}: only in {}\n", name, of_left.contains(name) ? "A" : "B");
    }
  }
  return text;
}

}  // namespace

CommandResult diff(const fs::path& left, const fs::path& right, size_t most) {
  const bool folders = fs::is_directory(left);
  if (folders != fs::is_directory(right)) {
    base::fail(ErrorKind::usage, {}, kCheckpointProgram, "{} is {}, {} is {}; pass two folders or two files",
               left.string(), folders ? "a folder" : "not a folder", right.string(),
               folders ? "not a folder" : "a folder");
  }
  const std::string text =
      folders ? compare_folders(left, right, most) : compare_files(left.filename().string(), left, right, most);
  return {text, text.empty() ? 0 : 1};
}

}  // namespace accelerate::launch
