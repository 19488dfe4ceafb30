// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/safetensors.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>

using namespace accelerate::archive;

namespace {

const Origin origin{.path = "f", .operation = "load"};

std::string with_length(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string refusal(const std::string& file) {
  try {
    static_cast<void>(read_safetensors(file, origin));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

std::string refusal_of(const std::string& header, size_t data_bytes) {
  return refusal(with_length(header, std::string(data_bytes, 'x')));
}

}  // namespace

TEST_CASE("names, dtypes, shapes, offsets and metadata survive a round trip; wide elements are written first") {
  std::vector<SafetensorsEntry> tensors{{.name = "flag", .dtype = "BOOL", .shape = {3}},
                                        {.name = "scalar", .dtype = "F32"},
                                        {.name = "empty", .dtype = "F16", .shape = {0, 7}},
                                        {.name = "w\xc3\xa4ight \"a\"", .dtype = "I64", .shape = {2, 3}}};
  const std::string header = write_safetensors(tensors, {{"format", "pt"}}, "save");
  CHECK(header.size() % 8 == 0);
  CHECK(tensors[0].name == "w\xc3\xa4ight \"a\"");
  CHECK(tensors.back().end == 48 + 4 + 3);
  const auto read = read_safetensors(header + std::string(55, '\0'), origin);
  CHECK(read.tensors == tensors);
  CHECK(read.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(read.data_begin == header.size());
  CHECK(read_safetensors(header, origin, header.size() + 55) == read);
  const auto without_metadata = read_safetensors(with_length(R"({"__metadata__":null})"), origin);
  CHECK(without_metadata.metadata.empty());
  CHECK(without_metadata.tensors.empty());
  std::vector<SafetensorsEntry> none;
  CHECK(read_safetensors(write_safetensors(none, {}, "save"), origin).tensors.empty());
}

TEST_CASE("a cut file, or a header with a wrong length, is refused") {
  CHECK(refusal("1234567") == "load: f: the file has 7 bytes, a safetensors file has at least 8");
  CHECK(refusal(std::string(7, '\xff') + '\x7f' + "{}") ==
        "load: f: the header has 9223372036854775807 bytes, at most 100000000 are read");
  CHECK(refusal(with_length("{ }").substr(0, 10)) ==
        "load: f: the header has 3 bytes, but 2 follow its length; the file was cut, or is not a safetensors file");
  CHECK(refusal_of("[1]", 0) == "load: f: the header is array, expected an object");
  CHECK(refusal_of("{", 0).starts_with("load: f: the header is not JSON: "));
}

TEST_CASE("tensors with an overlap, a gap, a cut or a wrong size are refused by name") {
  const auto tensor = [](const std::string& name, const std::string& rest) {
    return "\"" + name + "\":{" + rest + "}";
  };
  const std::string a = tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  CHECK(refusal_of("{" + a + "}", 8).empty());
  CHECK(refusal_of("{" + a + "}", 7) == "load: f: the tensors have 8 bytes, the file 7 after its header; it was cut");
  CHECK(refusal_of("{" + a + "}", 9) == "load: f: the tensors have 8 bytes, the file 9 after its header");
  CHECK(refusal_of("{" + a + "," + tensor("b", R"("dtype":"U8","shape":[2],"data_offsets":[7,9])") + "}", 9) ==
        "load: f: tensor 'b' begins at byte 7 of the data, expected 8: tensors overlap");
  CHECK(refusal_of("{" + a + "," + tensor("b", R"("dtype":"U8","shape":[2],"data_offsets":[9,11])") + "}", 11) ==
        "load: f: tensor 'b' begins at byte 9 of the data, expected 8: tensors leave a gap");
  CHECK(refusal_of("{" + tensor("a", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])") + "}", 8) ==
        "load: f: tensor 'a' occupies bytes 0 to 8, but F32 of shape [3] is 12 bytes");
  CHECK(refusal_of("{" + tensor("a", R"("dtype":"F32","shape":[3],"data_offsets":[8,0])") + "}", 8) ==
        "load: f: tensor 'a' occupies bytes 8 to 0, but F32 of shape [3] is 12 bytes");
  CHECK(
      refusal_of("{" + tensor("a", R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8])") + "}", 8) ==
      "load: f: tensor 'a' occupies bytes 0 to 8, but F64 of shape [4294967296,4294967296] is too many bytes");
  CHECK(
      refusal_of("{" + tensor("a", R"("dtype":"U8","shape":[0,9223372036854775808],"data_offsets":[0,0])") + "}", 0) ==
      "load: f: tensor 'a' occupies bytes 0 to 0, but U8 of shape [0,9223372036854775808] is too many bytes");
  CHECK(refusal_of("{" + tensor("a", R"("dtype":"U8","shape":[0,7],"data_offsets":[0,0])") + "}", 0).empty());
}

TEST_CASE("a header with missing, mistyped or duplicate parts is refused with the part's name") {
  const auto of_a = [](const std::string& rest) { return refusal_of("{\"a\":" + rest + "}", 4); };
  CHECK(of_a("3") == "load: f: tensor 'a' is number, expected an object with dtype, shape and data_offsets");
  CHECK(of_a(R"({"shape":[1],"data_offsets":[0,4]})") == "load: f: tensor 'a': dtype is missing, expected a string");
  CHECK(of_a(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})") ==
        "load: f: tensor 'a': shape is number, expected an array");
  CHECK(of_a(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})") ==
        "load: f: tensor 'a': shape holds -1, expected an integer from 0");
  CHECK(of_a(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})") ==
        "load: f: tensor 'a': data_offsets has 3 numbers, expected 2");
  CHECK(of_a(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})") ==
        "load: f: tensor 'a' has dtype 'F31', which is not supported; convert it");
  CHECK(refusal_of(R"({"a":{},"a":{}})", 0) == "load: f: the header names 'a' twice");
  CHECK(refusal_of(R"({"__metadata__":{"a":1}})", 0) == "load: f: __metadata__: 'a' is number, expected a string");
  CHECK(refusal_of(R"({"__metadata__":[]})", 0) == "load: f: __metadata__ is array, expected an object");
  CHECK(refusal_of("{\"a\":[[[[[[1]]]]]]}", 0) == "load: f: the header is nested more than 4 deep");
  std::string many = "1";
  for (int i = 0; i < 70; ++i) many += ",1";
  CHECK(of_a(R"({"dtype":"F32","shape":[)" + many + R"(],"data_offsets":[0,4]})") ==
        "load: f: the header has an array of more than 64 numbers");
  std::string empty = "[]";
  for (int i = 0; i < 70; ++i) empty += ",[]";
  CHECK(refusal_of("{\"a\":[" + empty + "]}", 0) == "load: f: the header has an array of more than 64 numbers");
}

TEST_CASE("a header of a hundred thousand tensors is read in linear time") {
  std::vector<SafetensorsEntry> tensors;
  for (int i = 0; i < 100'000; ++i) tensors.push_back({.name = std::to_string(i), .dtype = "U8", .shape = {0, 7}});
  const std::string file = write_safetensors(tensors, {{"format", "pt"}}, "save");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(read_safetensors(file, origin).tensors.size() == 100'000);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));  // an earlier version took minutes
}

TEST_CASE("duplicate or reserved names, unknown dtypes and invalid UTF-8 are not written") {
  const auto refused = [](std::vector<SafetensorsEntry> tensors) {
    try {
      static_cast<void>(write_safetensors(tensors, {}, "save_model"));
    } catch (const accelerate::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({{.name = "a", .dtype = "F32"}, {.name = "a", .dtype = "F32"}}) ==
        "save_model: the tensor name a appears twice; names must be unique");
  CHECK(refused({{.name = "__metadata__", .dtype = "F32"}}) ==
        "save_model: the tensor name __metadata__ has another meaning in safetensors; names must be unique");
  CHECK(refused({{.name = "a", .dtype = "C128"}}) ==
        "save_model: tensor a has dtype C128, which safetensors does not support");
  CHECK(refused({{.name = "\xff", .dtype = "F32"}})
            .starts_with("save_model: a tensor's name or a text of the metadata is not UTF-8: "));
}
