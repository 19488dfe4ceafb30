// SPDX-License-Identifier: Apache-2.0
// Line ends, encodings and integers of CSV files.
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/csv.hpp"
#include "accelerate/data/sources/csv_columns.hpp"
#include "accelerate/data/sources/npy.hpp"

using accelerate::ErrorKind;
using accelerate::data::CsvData;
using accelerate::data::CsvOptions;
using accelerate::data::CsvType;
using accelerate::data::OnError;
using accelerate::data::read_csv;
using accelerate::data::read_csv_columns;
using namespace test_files;
using namespace std::string_literals;

namespace {

struct LinesFile {
  Folder folder;
  std::string path = folder.file("x.csv");

  [[nodiscard]] CsvData read(const std::string& text, const CsvOptions& options = {}) const {
    write(path, text);
    return read_csv(path, options);
  }
  [[nodiscard]] std::string refused(const std::string& text, const CsvOptions& options = {}) const {
    write(path, text);
    auto error_text = message([&] { (void)read_csv(path, options); }, ErrorKind::data);
    if (const auto at = error_text.find(path); at != std::string::npos) error_text.replace(at, path.size(), "FILE");
    return error_text;
  }
};

at::Tensor rows_of_two(const std::vector<float>& values) { return torch::tensor(values).view({-1, 2}); }

}  // namespace

TEST_CASE("lines may end with CR, also mixed with LF and CRLF, and empty lines are skipped") {
  const LinesFile file;
  const auto expected = rows_of_two({1, 2, 3, 4});
  for (const std::string text : {"a,b\r1,2\r3,4\r", "a,b\r1,2\r3,4", "\ra,b\r\r1,2\r\r3,4", "a,b\n1,2\r3,4\r\n",
                                 "a,b\r\n1,2\r\r\n3,4\r\n\r", "\"a\",\"b\"\r\"1\",2\r3,\"4\"\r"}) {
    CAPTURE(text);
    CHECK(file.read(text).data.equal(expected));
  }
  CHECK(file.read("1,2\r3,4\r", {.header = false}).data.equal(expected));
  CHECK(file.read("\r\r1;2\r", {.delimiter = ';', .header = false}).data.equal(rows_of_two({1, 2})));
}

TEST_CASE("files of Python's csv module with CR line ends are read, every number to its last bit") {
  const fs::path recorded = TEST_SOURCE_DIR "/tests/data/sources/recorded";
  const auto found =
      read_csv(recorded / "python_cr.csv", {.columns = {"x", "the \"y\", quoted", "z"}, .dtype = torch::kDouble});
  CHECK(found.data.equal(accelerate::data::map_npy(recorded / "python.csv.npy")));
}

TEST_CASE("a quoted field may contain CR, which counts as a line in error messages") {
  const LinesFile file;
  write(file.path, "note,y\r\"two\rlines\",1\r\"x\r\ny\nz\",2\r");
  const auto table = read_csv_columns(file.path, {.columns = {{"note", CsvType::text}, {"y"}}});
  CHECK(table.columns.texts.at("note") == std::vector<std::string>{"two\rlines", "x\r\ny\nz"});
  CHECK(file.refused("a,b\r\"1\r\n\r\",2\r3,x\r", {.columns = {"b"}}) ==
        "csv: FILE line 5, column 'b': expected a number (float32), found 'x'");
  CHECK(file.refused("a,b\r1,\"2\r3,4\r") == "csv: FILE line 2: a quoted field does not end: expected a closing \"");
  const auto skipped = file.read("a,b\r1,2\r3,\"4\r5,6\r", {.on_error = OnError::skip});
  CHECK(skipped.data.equal(rows_of_two({1, 2, 5, 6})));
  CHECK(skipped.skipped == 1);
}

TEST_CASE("a file in UTF-16 or UTF-32, with or without BOM, is refused with its encoding and the conversion") {
  const LinesFile file;
  const auto refusal = [](const std::string& encoding) {
    return "csv: FILE is encoded in " + encoding + ": expected UTF-8; convert it with iconv -f " + encoding +
           " -t UTF-8";
  };
  CHECK(file.refused("\xff\xfe\x61\0,\0b\0\n\0"s) == refusal("UTF-16LE"));
  CHECK(file.refused("\xfe\xff\0a\0,\0b\0\n"s) == refusal("UTF-16BE"));
  CHECK(file.refused("\xff\xfe\0\0a\0\0\0"s) == refusal("UTF-32LE"));
  CHECK(file.refused("\0\0\xfe\xff\0\0\0a"s) == refusal("UTF-32BE"));
  CHECK(file.refused("a\0,\0b\0\n\0"s) == refusal("UTF-16LE"));
  CHECK(file.refused("\0a\0,\0b\0\n"s) == refusal("UTF-16BE"));
  CHECK(file.refused("a\0\0\0,\0\0\0"s) == refusal("UTF-32LE"));
  CHECK(file.refused("\xff\xfe\x61\0"s, {.on_error = OnError::skip}) == refusal("UTF-16LE"));
  write(file.path, "\xff\xfe\x61\0\n\0"s);
  CHECK(message([&] { (void)read_csv_columns(file.path, {.columns = {{"a"}}}); }, ErrorKind::data)
            .starts_with("csv: " + file.path + " is encoded in UTF-16LE: "));
  CHECK(file.read("\xef\xbb\xbf\xc3\xa4,b\n1,2\n", {.columns = {"\xc3\xa4", "b"}}).data.equal(rows_of_two({1, 2})));
}

TEST_CASE("int64 labels and columns may have a fraction of zeros, as pandas writes them") {
  const LinesFile file;
  const auto found = file.read("a,y\n1,0.0\n2,2.\n3,+1.00\n4,-0.0\n", {.target = "y", .classes = 3});
  CHECK(found.target.equal(torch::tensor({0, 2, 1, 0}, torch::kLong)));
  CHECK(file.read("a\n9007199254740993.0\n-9223372036854775808.0\n", {.dtype = torch::kLong})
            .data.equal(torch::tensor({9007199254740993, INT64_MIN}, torch::kLong).view({2, 1})));
  write(file.path, "id\n7.0\n8\n");
  const auto table = read_csv_columns(file.path, {.columns = {{"id", CsvType::int64}}});
  CHECK(table.columns.numbers.at("id").equal(torch::tensor({7, 8}, torch::kLong)));
  const auto refusal = [&](const std::string& field) {
    return file.refused("a,y\n1," + field + "\n", {.target = "y", .classes = 3});
  };
  for (const std::string field : {"0.5", "1.0e0", ".0", ".", "1.0.0", "0x1.0", "9223372036854775808.0", "1.0 0"}) {
    CHECK(refusal(field) == "csv: FILE line 2, column 'y': expected a number (int64), found '" + field + "'");
  }
  CHECK(refusal("3.0") == "csv: FILE line 2, column 'y': expected a label from 0 to 2, found 3");
}
