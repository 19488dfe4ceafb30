// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/manifest.hpp"

#include <doctest/doctest.h>

#include <chrono>

using namespace accelerate::archive;

namespace {

const Origin origin{.path = "manifest.json", .operation = "load_state"};

Manifest example() {
  return {.library = "accelerate-cpp 0.1",
          .world_size = 2,
          .step = 400,
          .epoch = 3,
          .files = {{"model.safetensors", 1000, "d447b1ea40e6988b"}, {"random_states_1.pkl", 7, "0123456789abcdef"}},
          .parts = {{"model", 0, {"model.safetensors"}}, {"random_states", 1, {"random_states_1.pkl"}}},
          .ranges = {{"model.0/first.weight", {16, 8}, 0, 128, "model.safetensors", "first.weight"}}};
}

// The example with one text replaced by another.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = write_manifest(example());
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  try {
    static_cast<void>(parse_manifest_file(text.replace(at, from.size(), to), origin));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a value survives a round trip") {
  CHECK(parse_manifest_file(write_manifest(example()), origin) == example());
  CHECK(parse_manifest_file(write_manifest({}), origin) == Manifest{});
}

TEST_CASE("a manifest of a newer version is refused with both versions and the remedy") {
  CHECK(refusal("\"version\": 1", "\"version\": 2") ==
        "load_state: manifest.json: the manifest has version 2, versions up to 1 are read; use a newer version of this "
        "library");
}

TEST_CASE("invalid files (outside the folder, listed twice, unlisted) and invalid members are refused") {
  const std::string prefix = "load_state: manifest.json: ";
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\u0000b"}) {
    CHECK(refusal("\"name\": \"model.safetensors\"", "\"name\": \"" + std::string(name) + "\"")
              .ends_with(", expected a name without folders"));
  }
  CHECK(refusal("\"name\": \"model.safetensors\"", "\"name\": \"../m\"") ==
        prefix + "files[0] names the file '../m', expected a name without folders");
  CHECK(refusal("random_states_1.pkl", "model.safetensors") ==
        prefix + "the manifest lists the file 'model.safetensors' twice");
  CHECK(refusal("\"name\": \"model.safetensors\"", "\"name\": \"m\"") ==
        prefix + "the manifest uses the file 'model.safetensors', which it does not list");
  CHECK(refusal("\"bytes\": 1000", "\"bytes\": -1") ==
        prefix + "'bytes' of files[0] is -1, expected an integer from 0");
  CHECK(refusal("\"bytes\": 1000", "\"bytes\": \"x\"") ==
        prefix + "'bytes' of files[0] is a text, expected an integer from 0");
  CHECK(refusal("\"epoch\"", "\"epochs\"") == prefix + "the manifest lacks 'epoch'");
  CHECK(refusal("\"kind\": \"model\"", "\"kind\": 3") == prefix + "'kind' of parts[0] is an integer, expected a text");
  CHECK(refusal("\"end\": 128", "\"end\": 128, \"begin\": 129") ==
        prefix + "the manifest has elements 129 to 128 of 'model.0/first.weight'");
  CHECK(refusal("{", "").starts_with(prefix + "the manifest is not JSON: "));
  CHECK_THROWS_WITH(static_cast<void>(parse_manifest_file("[]", origin)),
                    "load_state: manifest.json: the manifest is a list, expected a dict");
  CHECK(refusal("\"kind\": \"model\"", "\"kind\": " + std::string(50, '[') + std::string(50, ']')) ==
        prefix + "the manifest is nested more than 20 deep");
}

TEST_CASE("a flipped bit anywhere in a manifest is detected or changes nothing") {
  const std::string text = write_manifest(example());
  int64_t harmless = 0;
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    try {
      CHECK(parse_manifest_file(flipped, origin) == example());
      ++harmless;
    } catch (const accelerate::Error& error) {
      CHECK(error.kind() == accelerate::ErrorKind::data);
    }
  }
  CHECK(harmless < static_cast<int64_t>(text.size()));  // replaces white space by white space
  const auto message = refusal("\"epoch\": 3", "\"epoch\": 4");
  CHECK(message.starts_with("load_state: manifest.json: the manifest has checksum "));
  CHECK(message.ends_with(": its bytes were changed"));
}

TEST_CASE("a manifest with too many names is refused at once") {
  std::string names;
  for (int i = 0; i < 30'000; ++i) names += "\"" + std::to_string(i) + "\": 0, ";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(refusal("\"epoch\"", names + "\"epoch\"") ==
        "load_state: manifest.json: the manifest has an object of 30010 names, expected at most 1000");
  CHECK(refusal("\"kind\"", names + "\"kind\"").ends_with("an object of 30003 names, expected at most 1000"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("a manifest is recognised by its beginning") {
  const std::string text = write_manifest(example());
  CHECK(starts_like_manifest(text));
  CHECK(starts_like_manifest(text.substr(0, 40)));
  CHECK_FALSE(starts_like_manifest(text.substr(0, 16)));
  CHECK_FALSE(starts_like_manifest(" " + text));
}
