// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/csv.hpp"
#include "accelerate/data/sources/npy.hpp"

using accelerate::ErrorKind;
using accelerate::data::csv;
using accelerate::data::CsvData;
using accelerate::data::CsvOptions;
using accelerate::data::OnError;
using accelerate::data::read_csv;
using namespace test_files;

namespace {

CsvData parsed(const std::string& text, const CsvOptions& options = {}) {
  const Folder folder;
  write(folder.path / "x.csv", text);
  return read_csv(folder.path / "x.csv", options);
}

at::Tensor floats(std::vector<float> values, at::IntArrayRef shape) { return torch::tensor(values).view(shape); }

/// A file, and the error text after its path.
struct File {
  Folder folder;
  std::string path = folder.file("x.csv");

  std::string refused(const std::string& text, const CsvOptions& options = {}, ErrorKind kind = ErrorKind::data) const {
    write(path, text);
    auto error_text = message([&] { (void)read_csv(path, options); }, kind);
    if (const auto at = error_text.find(path); at != std::string::npos) error_text.replace(at, path.size(), "FILE");
    return error_text;
  }
};

}  // namespace

TEST_CASE("columns are chosen by name, in the requested order, and one is the target") {
  const std::string text = "a,label,b,c\n1,2,3,4\n5,6,7,8\n";
  const auto all = parsed(text, {.target = "label"});
  CHECK(all.data.equal(floats({1, 3, 4, 5, 7, 8}, {2, 3})));
  CHECK(all.target.equal(torch::tensor({2, 6}, torch::kLong)));
  CHECK(all.skipped == 0);
  const auto some = parsed(text, {.columns = {"c", "a"}});
  CHECK(some.data.equal(floats({4, 1, 8, 5}, {2, 2})));
  CHECK(!some.target.defined());
}

TEST_CASE("numbers become float32, float64 or int64") {
  const std::string text = "x,y\n1,2\n-3,4\n";
  CHECK(parsed(text, {.dtype = torch::kDouble})
            .data.equal(torch::tensor({1., 2., -3., 4.}, torch::kDouble).view({2, 2})));
  CHECK(parsed(text, {.dtype = torch::kLong}).data.equal(torch::tensor({1, 2, -3, 4}, torch::kLong).view({2, 2})));
  const auto target = parsed("x,y\n1,.5\n", {.target = "y", .target_dtype = torch::kFloat}).target;
  CHECK(target.equal(torch::tensor({0.5F})));
  CHECK(parsed("x\n9223372036854775807\n-9223372036854775808\n", {.dtype = torch::kLong})
            .data.equal(torch::tensor({INT64_MAX, INT64_MIN}, torch::kLong).view({2, 1})));
  CHECK(parsed("x\n0.1\n", {.dtype = torch::kDouble}).data.item<double>() == 0.1);
  CHECK(parsed("x\n0.1\n").data.item<float>() == 0.1F);
}

TEST_CASE("numbers may have a plus, spaces and an exponent, be infinite, or underflow to 0") {
  const auto data =
      parsed("x\n+1.5\n  2\t\n1e3\n-2.5E-1\n.5\n5.\ninf\n-Infinity\n1e-60\n-1e-400\n0." + std::string(400, '0') + "1\n")
          .data;
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK(data.equal(floats({1.5F, 2, 1000, -0.25F, 0.5F, 5, infinite, -infinite, 0, 0, 0}, {11, 1})));
}

TEST_CASE("fields may be quoted, with delimiters, line ends and quotes within") {
  const auto data =
      parsed("\"a,b\",\"say \"\"c\"\"\",note\r\n\"1\",2,\"two\r\nlines, with \"\"\"\"\"\r\n3,\"4\",\"\"\r\n",
             {.columns = {"say \"c\"", "a,b"}});
  CHECK(data.data.equal(floats({2, 1, 4, 3}, {2, 2})));
}

TEST_CASE("files of Python's csv module are read, every number to its last bit") {
  const fs::path recorded = TEST_SOURCE_DIR "/tests/data/sources/recorded";
  const auto found =
      read_csv(recorded / "python.csv", {.columns = {"x", "the \"y\", quoted", "z"}, .dtype = torch::kDouble});
  CHECK(found.data.equal(accelerate::data::map_npy(recorded / "python.csv.npy")));
}

TEST_CASE("options and formats: another delimiter, no header, empty lines, BOM, no final line end") {
  CHECK(parsed("a;b\n1;2\n", {.delimiter = ';'}).data.equal(floats({1, 2}, {1, 2})));
  CHECK(parsed("1\t2\n3\t4\n", {.columns = {"1"}, .delimiter = '\t', .header = false})
            .data.equal(floats({2, 4}, {2, 1})));
  CHECK(parsed("\na,b\n\n1,2\r\n\r\n3,4\n\n").data.equal(floats({1, 2, 3, 4}, {2, 2})));
  CHECK(parsed("\xef\xbb\xbf"
               "a,b\n1,2",
               {.columns = {"a"}})
            .data.equal(floats({1}, {1, 1})));
}

TEST_CASE("missing numbers are an error or replaced by CsvOptions::fill") {
  const File file;
  const std::string text = "a,b\n1,\nNA,4\nnan,NaN\n";
  CHECK(parsed(text, {.fill = -1}).data.equal(floats({1, -1, -1, 4, -1, -1}, {3, 2})));
  CHECK(parsed(text, {.dtype = torch::kLong, .fill = 7})
            .data.equal(torch::tensor({1, 7, 7, 4, 7, 7}, torch::kLong).view({3, 2})));
  CHECK(parsed(text, {.fill = NAN}).data.isnan().sum().item<int64_t>() == 4);
  CHECK(file.refused(text) ==
        "csv: FILE line 2, column 'b': expected a number (float32), found nothing; CsvOptions::fill is for these");
  CHECK(file.refused("a,b\n1,2\nNA,4\n") ==
        "csv: FILE line 3, column 'a': expected a number (float32), found 'NA'; CsvOptions::fill is for these");
  CHECK(file.refused("a,b\n1,\n", {.target = "b", .fill = 0}) ==
        "csv: FILE line 2, column 'b': expected a number (int64), found nothing");
}

TEST_CASE("an invalid line is refused with path, line, column, expected and found") {
  const File file;
  CHECK(file.refused("a,b\n1,2\n3,four\n") ==
        "csv: FILE line 3, column 'b': expected a number (float32), found 'four'");
  CHECK(file.refused("a,b\n1,2 3\n") == "csv: FILE line 2, column 'b': expected a number (float32), found '2 3'");
  CHECK(file.refused("a\n1e39\n") == "csv: FILE line 2, column 'a': expected a number (float32), found '1e39'");
  const auto large = "1" + std::string(50, '0') + "e-1";
  CHECK(file.refused("a\n" + large + "\n") ==
        "csv: FILE line 2, column 'a': expected a number (float32), found '" + large + "'");
  CHECK(file.refused("a\n0x10\n") == "csv: FILE line 2, column 'a': expected a number (float32), found '0x10'");
  CHECK(file.refused("a\n+-1\n") == "csv: FILE line 2, column 'a': expected a number (float32), found '+-1'");
  CHECK(file.refused("a\n1.5\n", {.dtype = torch::kLong}) ==
        "csv: FILE line 2, column 'a': expected a number (int64), found '1.5'");
  CHECK(file.refused("a\n9223372036854775808\n", {.dtype = torch::kLong}) ==
        "csv: FILE line 2, column 'a': expected a number (int64), found '9223372036854775808'");
  CHECK(file.refused("a,b\n1,2\n3\n") == "csv: FILE line 3: expected 2 fields, found 1");
  CHECK(file.refused("a,b\n1,2,\n") == "csv: FILE line 2: expected 2 fields, found 3");
  CHECK(file.refused("a,b\n\"x\ny\",1\n1,\x01\xff\n", {.columns = {"b"}}) ==
        "csv: FILE line 4, column 'b': expected a number (float32), found '\\x01\xff'");
  CHECK(file.refused("a,b\n1,\"2\n3,4\n") == "csv: FILE line 2: a quoted field does not end: expected a closing \"");
  CHECK(file.refused("a,b\n1,\"2\"x\n3,4\n") ==
        "csv: FILE line 2: text follows a closing \": a quote within a quoted field is written twice");
  CHECK(file.refused("\"a\nb") == "csv: FILE line 1: a quoted field does not end: expected a closing \"");
}

TEST_CASE("a missing or duplicate column, and files without samples, are refused") {
  const File file;
  CHECK(file.refused("a,b\n1,2\n", {.columns = {"c"}}) == "csv: FILE line 1 has no column 'c': found 'a', 'b'");
  CHECK(file.refused("a,b\n1,2\n", {.target = "label"}) == "csv: FILE line 1 has no column 'label': found 'a', 'b'");
  CHECK(file.refused("1,2\n", {.columns = {"2"}, .header = false}) ==
        "csv: FILE line 1 has no column '2': found '0', '1'");
  CHECK(file.refused("a,a\n1,2\n", {.columns = {"a"}}) ==
        "csv: FILE line 1 has the column 'a' more than once: expected it once");
  CHECK(file.refused("y\n1\n", {.target = "y"}) ==
        "csv: FILE has the column 'y' alone: expected at least one beside the target");
  CHECK(file.refused("") == "csv: FILE is empty: expected a line with the columns' names");
  CHECK(file.refused("\n\n", {.header = false}) == "csv: FILE is empty: expected a sample");
  CHECK(file.refused("a,b\n") == "csv: FILE has no samples: expected at least 1 line after the names");
  CHECK(message([] { (void)read_csv("/nowhere/x.csv"); }, ErrorKind::io) ==
        "csv: /nowhere/x.csv cannot be opened: No such file or directory");
}

TEST_CASE("a label out of range names its line") {
  const File file;
  CHECK(file.refused("a,y\n1,2\n1,3\n", {.target = "y", .classes = 3}) ==
        "csv: FILE line 3, column 'y': expected a label from 0 to 2, found 3");
  CHECK(file.refused("a,y\n1,-1\n", {.target = "y", .classes = 3}) ==
        "csv: FILE line 2, column 'y': expected a label from 0 to 2, found -1");
}

TEST_CASE("with skip, invalid lines are omitted, counted and logged once") {
  const Folder folder;
  const auto path = folder.file("x.csv");
  write(path, "a,b,y\n1,2,0\n3,x,1\n4,5\n6,7,NA\n8,9,5\n10,11,1\n12,\"13,1\n");
  const CsvOptions options{.target = "y", .on_error = OnError::skip, .classes = 2};
  CsvData data;
  const auto lines = logged([&] {
    data = read_csv(path, options);
    (void)read_csv(path, options);
  });
  CHECK(data.data.equal(floats({1, 2, 10, 11}, {2, 2})));
  CHECK(data.target.equal(torch::tensor({0, 1}, torch::kLong)));
  CHECK(data.skipped == 5);
  CHECK(lines == std::vector<std::string>{"csv: 5 of 7 lines are left out; the first: " + path +
                                          " line 3, column 'b': expected a number (float32), found 'x'"});
  // A quoted field without an end breaks only its own line.
  const auto unclosed = parsed("a,b\n1,2\n3,\"4\r\n5,6\n7,8\n", {.on_error = OnError::skip});
  CHECK(unclosed.data.equal(floats({1, 2, 5, 6, 7, 8}, {3, 2})));
  CHECK(unclosed.skipped == 1);
  const File file;
  CHECK(file.refused("a\nx\ny\n", {.on_error = OnError::skip}) ==
        "csv: all 2 lines are broken; the first: FILE line 2, column 'a': expected a number (float32), found 'x'");
  CHECK(logged([&] { (void)parsed("a\n1\n", {.on_error = OnError::skip}); }).empty());
}

TEST_CASE("invalid options are refused with the values") {
  const auto refused = [](const CsvOptions& options) {
    return File().refused("a,y\n1,2\n", options, ErrorKind::usage);
  };
  CHECK(refused({.dtype = torch::kInt}) == "csv: dtype is int32, must be float32, float64 or int64");
  CHECK(refused({.target = "y", .target_dtype = torch::kByte}) ==
        "csv: target_dtype is uint8, must be float32, float64 or int64");
  CHECK(refused({.delimiter = '\n'}) ==
        "csv: delimiter is '\\x0a', must be another character than quotes and line ends");
  CHECK(refused({.dtype = torch::kLong, .fill = 0.5}) == "csv: fill is 0.5, must be an int64, as dtype is one");
  CHECK(refused({.dtype = torch::kLong, .fill = NAN}) == "csv: fill is nan, must be an int64, as dtype is one");
  CHECK(refused({.dtype = torch::kLong, .fill = 1e19}) == "csv: fill is 1e+19, must be an int64, as dtype is one");
  CHECK(refused({.target = "y", .classes = 0}) == "csv: classes is 0, must be at least 1");
  CHECK(refused({.classes = 3}) == "csv: classes is 3, but target is not set");
  CHECK(refused({.target = "y", .target_dtype = torch::kFloat, .classes = 3}) ==
        "csv: classes is 3, but target_dtype is not int64");
}

TEST_CASE("a CSV file can be read through a loader") {
  const Folder folder;
  write(folder.path / "x.csv", "a,y\n1,0\n2,1\n3,0\n");
  auto loader = csv(folder.path / "x.csv", {.target = "y"}, {.batch_size = 2});
  CHECK(loader.sample_count() == 3);
  CHECK(loader.begin()->data.equal(floats({1, 2}, {2, 1})));
  CHECK(loader.begin()->target.equal(torch::tensor({0, 1}, torch::kLong)));
}
