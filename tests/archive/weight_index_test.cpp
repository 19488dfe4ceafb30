// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/weight_index.hpp"

#include <doctest/doctest.h>

using namespace accelerate::archive;

namespace {

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(read_weight_index(text, {.path = "i", .operation = "load"}));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an index maps each tensor to its file") {
  const auto index = read_weight_index(R"({"metadata":{"total_size":8},"weight_map":{"a.w":"1.st","b.w":"2.st"}})",
                                       {.path = "i", .operation = "load"});
  CHECK(index == WeightIndex{{"a.w", "1.st"}, {"b.w", "2.st"}});
}

TEST_CASE("an invalid index, or one with files outside its folder, is refused") {
  CHECK(refusal("{").starts_with("load: i: the index is not JSON: "));
  CHECK(refusal("[]") == "load: i: the index has no 'weight_map' from tensors to files");
  CHECK(refusal("{}") == "load: i: the index has no 'weight_map' from tensors to files");
  CHECK(refusal(R"({"weight_map":[]})") == "load: i: the index has no 'weight_map' from tensors to files");
  CHECK(refusal(R"({"weight_map":{"a":"../x"}})") ==
        "load: i: the index maps 'a' to '../x', expected a file's name without folders");
  CHECK(refusal(R"({"weight_map":{"a":"/etc/passwd"}})") ==
        "load: i: the index maps 'a' to '/etc/passwd', expected a file's name without folders");
  CHECK(refusal(R"({"weight_map":{"a":".."}})") ==
        "load: i: the index maps 'a' to '..', expected a file's name without folders");
  CHECK(refusal(R"({"weight_map":{"a":"1.st","b":"1.st","a":"2.st"}})") == "load: i: the index names 'a' twice");
  CHECK(refusal(R"({"weight_map":{"a":"1.st"},"weight_map":{}})") == "load: i: the index names 'weight_map' twice");
  CHECK(refusal(std::string(30, '[') + std::string(30, ']')) == "load: i: the index is nested more than 20 deep");
  CHECK(refusal(R"({"weight_map":{"a":7}})") ==
        "load: i: the index maps 'a' to '7', expected a file's name without folders");
}
