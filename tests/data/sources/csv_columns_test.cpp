// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/csv_columns.hpp"

using accelerate::ErrorKind;
using accelerate::data::csv_columns;
using accelerate::data::CsvColumn;
using accelerate::data::CsvColumnOptions;
using accelerate::data::CsvTable;
using accelerate::data::CsvType;
using accelerate::data::OnError;
using accelerate::data::read_csv_columns;
using namespace test_files;
using Texts = std::vector<std::string>;

namespace {

const std::string typed_people =
    "age,city,height,note,id\n"
    "31,Bonn,1.5,\"said \"\"hi\"\"\",9007199254740993\n"
    "-4,Aachen,0.1,,2\n"
    "7,Bonn,1e3,x,3\n";

struct TypedFile {
  explicit TypedFile(const std::string& text) { write(path, text); }
  Folder folder;
  std::string path = folder.file("x.csv");

  CsvTable read(const CsvColumnOptions& options) const { return read_csv_columns(path, options); }
  std::string refused(const CsvColumnOptions& options, ErrorKind kind = ErrorKind::data) const {
    auto error_text = message([&] { (void)read(options); }, kind);
    if (const auto at = error_text.find(path); at != std::string::npos) error_text.replace(at, path.size(), "FILE");
    return error_text;
  }
};

std::string refused_columns(std::vector<CsvColumn> columns, const std::string& text) {
  return TypedFile(text).refused({.columns = std::move(columns)});
}

at::Tensor int64s(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kLong); }

}  // namespace

TEST_CASE("each column has the type of its option: float32, float64, int64, category, text") {
  const auto table = TypedFile(typed_people)
                         .read({.columns = {{"height", CsvType::float64},
                                            {"age"},
                                            {"id", CsvType::int64},
                                            {"city", CsvType::category},
                                            {"note", CsvType::text}}});
  const auto& numbers = table.columns.numbers;
  CHECK(numbers.size() == 4);
  CHECK(numbers.at("age").equal(torch::tensor({31.F, -4.F, 7.F})));
  CHECK(numbers.at("height").equal(torch::tensor({1.5, 0.1, 1000.}, torch::kDouble)));
  CHECK(numbers.at("id").equal(int64s({9007199254740993, 2, 3})));
  CHECK(numbers.at("city").equal(int64s({1, 0, 1})));
  CHECK(table.categories == std::map<std::string, Texts>{{"city", {"Aachen", "Bonn"}}});
  CHECK(table.columns.texts == std::map<std::string, Texts>{{"note", {"said \"hi\"", "", "x"}}});
  CHECK(table.skipped == 0);
}

TEST_CASE("a category keeps the order of given names, and a missing number has the column's fill value") {
  const auto table = TypedFile("a;b;c\nNA;y;\n2;x;3\n")
                         .read({.columns = {{.name = "a", .type = CsvType::int64, .fill = -1},
                                            {.name = "b", .type = CsvType::category, .categories = {"x", "z", "y"}},
                                            {.name = "c", .fill = 0.5}},
                                .delimiter = ';'});
  CHECK(table.columns.numbers.at("a").equal(int64s({-1, 2})));
  CHECK(table.columns.numbers.at("b").equal(int64s({2, 0})));
  CHECK(table.columns.numbers.at("c").equal(torch::tensor({0.5F, 3.F})));
  CHECK(table.categories.at("b") == Texts{"x", "z", "y"});
}

TEST_CASE("quotes within an unquoted field are text, as in Python's csv") {
  const auto table =
      TypedFile("pipe,\"\"\n5\"\" pipe,1\n\"5\"\" pipe\",2\n").read({.columns = {{"pipe", CsvType::text}}});
  CHECK(table.columns.texts.at("pipe") == Texts{"5\"\" pipe", "5\" pipe"});
}

TEST_CASE("without a header columns are named by their index") {
  const auto table = TypedFile("1,x\n2,y\n").read({.columns = {{"1", CsvType::text}, {"0"}}, .header = false});
  CHECK(table.columns.texts.at("1") == Texts{"x", "y"});
  CHECK(table.columns.numbers.at("0").equal(torch::tensor({1.F, 2.F})));
}

TEST_CASE("a field of the wrong type is refused with line, column, expected, found and the remedy") {
  CHECK(refused_columns({{"a", CsvType::int64}}, "a,b\n1,x\n1.5,y\n") ==
        "csv: FILE line 3, column 'a': expected a number (int64), found '1.5'; CsvColumn::type sets the expected type");
  CHECK(refused_columns({{"b", CsvType::float64}}, "a,b\n1,x\n") ==
        "csv: FILE line 2, column 'b': expected a number (float64), found 'x'; CsvColumn::type sets the expected type");
  CHECK(refused_columns({{"b"}}, "a,b\n1,\n") ==
        "csv: FILE line 2, column 'b': expected a number (float32), found nothing; set CsvColumn::fill for them");
  CHECK(refused_columns({{"b", CsvType::category}}, "a,b\n1,x\n2,\n") ==
        "csv: FILE line 3, column 'b': expected the name of a category, found nothing; CsvType::text accepts it, too");
  CHECK(refused_columns({{.name = "b", .type = CsvType::category, .categories = {"x", "y"}}}, "a,b\n1,\"z\"\"\"\n") ==
        "csv: FILE line 2, column 'b': expected one of 'x', 'y', found 'z\"'; CsvColumn::categories lists them");
  CHECK(refused_columns({{"a"}}, "a,b\n1\n") == "csv: FILE line 2: expected 2 fields, found 1");
  CHECK(refused_columns({{"c"}}, "a,b\n1,2\n") == "csv: FILE line 1 has no column 'c': found 'a', 'b'");
  CHECK(refused_columns({{"a"}}, "a,b\n") == "csv: FILE has no samples: expected at least 1 line after the names");
}

TEST_CASE("with skip an invalid line adds nothing to any column") {
  const TypedFile file("a,b,c\n1,x,one\n2,,two\nbroken,only here,three\n3,z,four\n4,never\n");
  CsvTable table;
  const auto lines = logged([&] {
    table = file.read({.columns = {{"a", CsvType::int64}, {"b", CsvType::category}, {"c", CsvType::text}},
                       .on_error = OnError::skip});
  });
  CHECK(table.columns.numbers.at("a").equal(int64s({1, 3})));
  CHECK(table.columns.numbers.at("b").equal(int64s({0, 1})));
  CHECK(table.columns.texts.at("c") == Texts{"one", "four"});
  CHECK(table.categories.at("b") == Texts{"x", "z"});
  CHECK(table.skipped == 3);
  CHECK(lines ==
        std::vector<std::string>{
            "csv: 3 of 5 lines are left out; the first: " + file.path +
            " line 3, column 'b': expected the name of a category, found nothing; CsvType::text accepts it, too"});
}

TEST_CASE("invalid columns are refused with the values") {
  const auto refused = [](std::vector<CsvColumn> columns) {
    return TypedFile("a,b\n1,2\n").refused({.columns = std::move(columns)}, ErrorKind::usage);
  };
  CHECK(refused({}) == "csv: columns has 0 columns, must have at least 1");
  CHECK(refused({{"a"}, {"b"}, {"a"}}) == "csv: columns has 'a' more than once");
  CHECK(refused({{.name = "a", .type = CsvType::text, .fill = 0}}) ==
        "csv: column 'a': fill is 0, but its type is text; fill is for numbers");
  CHECK(refused({{.name = "a", .type = CsvType::int64, .fill = 0.5}}) ==
        "csv: column 'a': fill is 0.5, must be an int64, as its type is");
  CHECK(refused({{.name = "a", .type = CsvType::float64, .categories = {"x", "y"}}}) ==
        "csv: column 'a': 2 categories are given, but its type is float64; make it CsvType::category");
  CHECK(refused({{.name = "a", .type = CsvType::category, .categories = {"x", "y", "x"}}}) ==
        "csv: column 'a': categories has 'x' more than once");
  CHECK(TypedFile("a\n1\n").refused({.columns = {{"a"}}, .delimiter = '"'}, ErrorKind::usage) ==
        "csv: delimiter is '\"', must be another character than quotes and line ends");
}

TEST_CASE("columns of several types form a loader with batches by column name") {
  const TypedFile file(typed_people);
  auto loader = csv_columns(
      file.path, {.columns = {{"age", CsvType::int64}, {"city", CsvType::category}, {"note", CsvType::text}}},
      {.batch_size = 2});
  CHECK(loader.sample_count() == 3);
  std::vector<int64_t> ages, cities;
  Texts notes;
  for (auto& batch : loader) {
    for (const auto& text : batch.texts.at("note")) notes.push_back(text);
    for (int64_t i = 0; i < batch.numbers.at("age").size(0); ++i) {
      ages.push_back(batch.numbers.at("age")[i].item<int64_t>());
      cities.push_back(batch.numbers.at("city")[i].item<int64_t>());
    }
  }
  CHECK(ages == std::vector<int64_t>{31, -4, 7});
  CHECK(cities == std::vector<int64_t>{1, 0, 1});
  CHECK(notes == Texts{"said \"hi\"", "", "x"});
}
