// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/csv.hpp"

using accelerate::ErrorKind;
using accelerate::data::CsvOptions;
using accelerate::data::OnError;
using accelerate::data::read_csv;
using namespace test_files;
using Names = std::vector<std::string>;

namespace {

const std::string flowers = "size,species\n1,virginica\n2,setosa\n3,\"iris, \"\"x\"\"\"\n4,setosa\n";

struct ClassesFile {
  explicit ClassesFile(const std::string& text) { write(path, text); }
  Folder folder;
  std::string path = folder.file("x.csv");

  std::string refused(const CsvOptions& options, ErrorKind kind = ErrorKind::data) const {
    auto error_text = message([&] { (void)read_csv(path, options); }, kind);
    if (const auto at = error_text.find(path); at != std::string::npos) error_text.replace(at, path.size(), "FILE");
    return error_text;
  }
};

at::Tensor longs(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kLong); }

}  // namespace

TEST_CASE("text labels become indices into their sorted class names, which are kept") {
  const auto found = read_csv(ClassesFile(flowers).path, {.target = "species", .text_classes = true});
  CHECK(found.classes == Names{"iris, \"x\"", "setosa", "virginica"});
  CHECK(found.target.equal(longs({2, 1, 0, 1})));
  CHECK(found.data.sizes() == at::IntArrayRef{4, 1});
  CHECK(read_csv(ClassesFile("a,y\n1,0\n").path, {.target = "y"}).classes.empty());
}

TEST_CASE("a test set that lacks a class uses the class names of the training set") {
  const ClassesFile file("size,species\n4,setosa\n5,virginica\n");
  const CsvOptions options{.target = "species", .text_classes = true, .class_names = {"virginica", "other", "setosa"}};
  const auto found = read_csv(file.path, options);
  CHECK(found.target.equal(longs({2, 0})));
  CHECK(found.classes == options.class_names);
  CHECK(ClassesFile("size,species\n4,setosa\n5,Setosa\n").refused(options) ==
        "csv: FILE line 3, column 'species': expected one of 'virginica', 'other', 'setosa', found 'Setosa'");
}

TEST_CASE("a wrong number of class names, and a missing name, are refused") {
  CHECK(ClassesFile(flowers).refused({.target = "species", .classes = 2, .text_classes = true}) ==
        "csv: FILE names 3 classes: expected 2, found 'iris, \"x\"', 'setosa', 'virginica'");
  CHECK(ClassesFile("a,y\n1,\n").refused({.target = "y", .text_classes = true}) ==
        "csv: FILE line 2, column 'y': expected the name of a class, found nothing");
}

TEST_CASE("an omitted invalid line adds no class") {
  const ClassesFile file("a,y\n1,x\nbroken,only here\n3,\n4,z\n");
  const auto lines = logged([&] {
    const auto found = read_csv(file.path, {.target = "y", .on_error = OnError::skip, .text_classes = true});
    CHECK(found.classes == Names{"x", "z"});
    CHECK(found.target.equal(longs({0, 1})));
    CHECK(found.skipped == 2);
  });
  CHECK(lines.size() == 1);
}

TEST_CASE("invalid options for text classes are refused") {
  const auto refused = [](const CsvOptions& options) {
    return ClassesFile(flowers).refused(options, ErrorKind::usage);
  };
  CHECK(refused({.text_classes = true}) == "csv: text_classes is on, but target is not set");
  CHECK(refused({.target = "species", .target_dtype = torch::kFloat, .text_classes = true}) ==
        "csv: text_classes is on, but target_dtype is not int64");
  CHECK(refused({.target = "species", .class_names = {"a"}}) == "csv: class_names are given, but text_classes is off");
  CHECK(refused({.target = "species", .text_classes = true, .class_names = {"a", "b", "a"}}) ==
        "csv: class_names has 'a' more than once");
  CHECK(refused({.target = "species", .classes = 3, .text_classes = true, .class_names = {"a", "b"}}) ==
        "csv: classes is 3, but class_names has 2");
}
