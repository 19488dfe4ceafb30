// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/manifest.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/archive/checksum.hpp"

namespace accelerate::archive {
namespace {

using nlohmann::json;

// Members of an object, with errors that say which.
class Members {
 public:
  Members(const json& object, std::string where, const Origin& origin)
      : object_(object), where_(std::move(where)), origin_(origin) {
    if (!object.is_object()) origin.broken("{} is {}, expected an object", where_, object.type_name());
  }

  [[nodiscard]] std::string text(const char* key) const {
    const json& value = member(key);
    if (!value.is_string()) wrong(key, value, "a text");
    return value.get<std::string>();
  }
  [[nodiscard]] int64_t integer(const char* key) const {
    const json& value = member(key);
    // JSON has integers of 64 bits with and without a sign; here all are at least 0 and fit into both.
    if (!value.is_number_integer() || value.get<int64_t>() < 0) wrong(key, value, "an integer from 0");
    return value.get<int64_t>();
  }
  [[nodiscard]] uint64_t natural(const char* key) const { return static_cast<uint64_t>(integer(key)); }
  [[nodiscard]] const json& array(const char* key) const {
    const json& value = member(key);
    if (!value.is_array()) wrong(key, value, "an array");
    return value;
  }
  [[nodiscard]] std::vector<uint64_t> naturals(const char* key) const {
    std::vector<uint64_t> numbers;
    for (const json& item : array(key)) {
      if (!item.is_number_integer() || item.get<int64_t>() < 0) wrong(key, member(key), "integers from 0");
      numbers.push_back(item.get<uint64_t>());
    }
    return numbers;
  }
  template <typename Each>
  void each(const char* key, const Each& read) const {
    size_t i = 0;
    for (const json& item : array(key)) read(Members(item, fmt::format("{}{}[{}]", prefix(), key, i++), origin_));
  }
  [[nodiscard]] std::string name_of_file(const std::string& name) const {
    if (!is_file_name(name)) {
      origin_.broken("{} names the file {}, expected a name without folders", where_, in_quotes(name));
    }
    return name;
  }

 private:
  [[nodiscard]] std::string prefix() const { return where_ == "the manifest" ? "" : where_ + "."; }
  [[nodiscard]] const json& member(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) origin_.broken("{} lacks '{}'", where_, key);
    return *found;
  }
  [[noreturn]] void wrong(const char* key, const json& value, std::string_view expected) const {
    origin_.broken("{}{} is {}, expected {}", prefix(), key, value.dump(), expected);
  }

  const json& object_;
  std::string where_;
  const Origin& origin_;
};

json parse_manifest(std::string_view text, const Origin& origin) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    origin.broken("the manifest is no JSON: {}", error.what());
  }
}

// Of its own text: a manifest that was changed is none.
std::string text_of(const nlohmann::ordered_json& all) {
  return all.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void check_own_checksum(std::string_view text, const std::string& written, const Origin& origin) {
  auto all = nlohmann::ordered_json::parse(text);
  all.erase("checksum");
  const std::string now = checksum_of(text_of(all));
  if (now != written) {
    origin.broken("the manifest has checksum {}, it says {}: its bytes were changed", now, in_quotes(written));
  }
}

void check_names(const Manifest& manifest, const Origin& origin) {
  std::set<std::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    if (!names.insert(file.name).second) origin.broken("the manifest lists the file {} twice", in_quotes(file.name));
  }
  const auto check = [&](const std::string& name) {
    if (!names.contains(name)) origin.broken("the manifest uses the file {}, which it does not list", in_quotes(name));
  };
  for (const ManifestPart& part : manifest.parts) std::for_each(part.files.begin(), part.files.end(), check);
  for (const ManifestRange& range : manifest.ranges) {
    check(range.file);
    if (range.end < range.begin) {
      origin.broken("the manifest has elements {} to {} of {}", range.begin, range.end, in_quotes(range.tensor));
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
                             {"checksums", checksum_kind},
                             {"files", files},
                             {"parts", parts},
                             {"ranges", ranges}};
  const std::string checksum = checksum_of(text_of(all));
  all["checksum"] = checksum;
  return text_of(all) + "\n";
}

Manifest read_manifest(std::string_view text, const Origin& origin) {
  const json whole = parse_manifest(text, origin);
  const Members all(whole, "the manifest", origin);
  Manifest manifest{.version = all.integer("version")};
  if (manifest.version > Manifest::current_version) {
    origin.broken("the manifest is of version {}, versions up to {} are read; use a newer version of this library",
                  manifest.version, Manifest::current_version);
  }
  manifest.library = all.text("library");
  manifest.world_size = all.integer("world_size");
  manifest.step = all.integer("step");
  manifest.epoch = all.integer("epoch");
  all.each("files", [&](const Members& file) {
    manifest.files.push_back({file.name_of_file(file.text("name")), file.natural("bytes"), file.text("checksum")});
  });
  all.each("parts", [&](const Members& part) {
    ManifestPart& last = manifest.parts.emplace_back(ManifestPart{part.text("kind"), part.integer("index")});
    for (const json& name : part.array("files")) {
      last.files.push_back(part.name_of_file(name.is_string() ? name.get<std::string>() : name.dump()));
    }
  });
  all.each("ranges", [&](const Members& range) {
    manifest.ranges.push_back({range.text("tensor"), range.naturals("sizes"), range.natural("begin"),
                               range.natural("end"), range.text("file"), range.text("key")});
  });
  check_names(manifest, origin);
  check_own_checksum(text, all.text("checksum"), origin);
  return manifest;
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace accelerate::archive
