// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/manifest.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/members.hpp"

namespace accelerate::archive {
namespace {

using nlohmann::json;

constexpr int kMaxManifestDepth = 20;       // manifests have a depth of 4
constexpr size_t kMaxManifestNames = 1000;  // manifests have 10, objects in them have 6

PickleValue value_of(const json& from, const Origin& origin, int depth = 0) {
  if (depth > kMaxManifestDepth) origin.broken("the manifest is nested more than {} deep", kMaxManifestDepth);
  if (from.is_boolean()) return from.get<bool>();
  if (from.is_string()) return from.get<std::string>();
  if (from.is_number_float()) return from.get<double>();
  if (from.is_number_unsigned() && from.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return PickleBigInteger{};
  }
  if (from.is_number_integer()) return from.get<int64_t>();
  if (from.is_array()) {
    PickleList list;
    for (const json& item : from) list.items->push_back(value_of(item, origin, depth + 1));
    return list;
  }
  if (!from.is_object()) return PickleNone{};
  PickleDict dict;
  for (const auto& [key, item] : from.items()) dict.entries->emplace_back(key, value_of(item, origin, depth + 1));
  return dict;
}

std::string name_of_file(const std::string& name, const Members& of, const Origin& origin) {
  if (!is_file_name(name)) {
    origin.broken("{} names the file {}, expected a name without folders", of.where(), quote_for_terminal(name));
  }
  return name;
}

json parse_manifest(std::string_view text, const Origin& origin) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    origin.broken("the manifest is not JSON: {}", error.what());
  }
}

// Text for the checksum of the manifest itself, because a changed manifest is invalid.
std::string manifest_text(const nlohmann::ordered_json& all) {
  return all.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Returns the largest number of names in one object.
size_t max_names_in(const json& value) {
  if (!value.is_structured()) return 0;
  size_t most = value.is_object() ? value.size() : 0;
  for (const json& item : value) most = std::max(most, max_names_in(item));
  return most;
}

void check_own_checksum(std::string_view text, const json& parsed, const std::string& written, const Origin& origin) {
  // An ordered object searches all names for each new one, so many names would take minutes.
  if (const size_t names = max_names_in(parsed); names > kMaxManifestNames) {
    origin.broken("the manifest has an object of {} names, expected at most {}", names, kMaxManifestNames);
  }
  auto all = nlohmann::ordered_json::parse(text);
  all.erase("checksum");
  const std::string now = checksum_of(manifest_text(all));
  if (now != written) {
    origin.broken("the manifest has checksum {}, but records {}: its bytes were changed", now,
                  quote_for_terminal(written));
  }
}

void check_names(const Manifest& manifest, const Origin& origin) {
  std::set<std::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    if (!names.insert(file.name).second)
      origin.broken("the manifest lists the file {} twice", quote_for_terminal(file.name));
  }
  const auto check = [&](const std::string& name) {
    if (!names.contains(name))
      origin.broken("the manifest uses the file {}, which it does not list", quote_for_terminal(name));
  };
  for (const ManifestPart& part : manifest.parts) std::for_each(part.files.begin(), part.files.end(), check);
  for (const ManifestRange& range : manifest.ranges) {
    check(range.file);
    if (range.end < range.begin) {
      origin.broken("the manifest has elements {} to {} of {}", range.begin, range.end,
                    quote_for_terminal(range.tensor));
    }
  }
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array(), parts = files, ranges = files;
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  }
  for (const auto& part : manifest.parts) {
    parts.push_back({{"kind", part.kind}, {"index", part.index}, {"files", part.files}});
  }
  for (const auto& range : manifest.ranges) {
    ranges.push_back({{"tensor", range.tensor},
                      {"sizes", range.sizes},
                      {"begin", range.begin},
                      {"end", range.end},
                      {"file", range.file},
                      {"key", range.key}});
  }
  nlohmann::ordered_json all{{"version", manifest.version},
                             {"library", manifest.library},
                             {"world_size", manifest.world_size},
                             {"step", manifest.step},
                             {"epoch", manifest.epoch},
                             {"checksums", kChecksumKind},
                             {"files", files},
                             {"parts", parts},
                             {"ranges", ranges}};
  if (!manifest.mesh.empty()) all["mesh"] = manifest.mesh;
  if (!manifest.id.empty()) all["id"] = manifest.id;
  const std::string checksum = checksum_of(manifest_text(all));
  all["checksum"] = checksum;
  return manifest_text(all) + "\n";
}

bool starts_like_manifest(std::string_view text) {
  constexpr std::string_view version = "{\n \"version\": ", library = ",\n \"library\": \"";
  if (!text.starts_with(version)) return false;
  text.remove_prefix(version.size());
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && text.substr(digits).starts_with(library);
}

Manifest parse_manifest_file(std::string_view text, const Origin& origin) {
  const json parsed = parse_manifest(text, origin);
  const PickleValue whole = value_of(parsed, origin);
  const Members all(whole, "the manifest", origin);
  Manifest manifest{.version = static_cast<int64_t>(all.natural("version"))};
  if (manifest.version > Manifest::kCurrentVersion) {
    origin.broken("the manifest has version {}, versions up to {} are read; use a newer version of this library",
                  manifest.version, Manifest::kCurrentVersion);
  }
  manifest.library = all.text("library");
  manifest.world_size = static_cast<int64_t>(all.natural("world_size"));
  manifest.step = static_cast<int64_t>(all.natural("step"));
  manifest.epoch = static_cast<int64_t>(all.natural("epoch"));
  if (parsed.contains("mesh")) manifest.mesh = all.text("mesh");
  if (parsed.contains("id")) manifest.id = all.text("id");
  all.each("files", [&](const Members& file) {
    manifest.files.push_back(
        {name_of_file(file.text("name"), file, origin), file.natural("bytes"), file.text("checksum")});
  });
  all.each("parts", [&](const Members& part) {
    ManifestPart& last =
        manifest.parts.emplace_back(ManifestPart{part.text("kind"), static_cast<int64_t>(part.natural("index"))});
    for (const PickleValue& name : part.items("files")) {
      const auto* file = name.as<std::string>();
      if (file == nullptr) part.wrong("files", name, "names");
      last.files.push_back(name_of_file(*file, part, origin));
    }
  });
  all.each("ranges", [&](const Members& range) {
    manifest.ranges.push_back({range.text("tensor"), range.naturals("sizes"), range.natural("begin"),
                               range.natural("end"), range.text("file"), range.text("key")});
  });
  check_names(manifest, origin);
  check_own_checksum(text, parsed, all.text("checksum"), origin);
  return manifest;
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace accelerate::archive
