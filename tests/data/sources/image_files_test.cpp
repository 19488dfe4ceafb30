// SPDX-License-Identifier: Apache-2.0
// recorded/image_folder.txt has the order of torchvision's ImageFolder, see record_image_folder.py.
#include "tests/data/sources/files.hpp"
//
#include <algorithm>

#include "accelerate/data/sources/image_files.hpp"
#include "accelerate/data/sources/image_folder.hpp"

using accelerate::ErrorKind;
using accelerate::data::find_images;
using accelerate::data::ImageFolderSource;
using namespace test_files;

namespace {

using FileLines = std::vector<std::string>;

/// A folder of empty files, which are listed and not opened.
struct EmptyFiles : Folder {
  explicit EmptyFiles(const FileLines& names) {
    for (const auto& name : names) {
      fs::create_directories((path / name).parent_path());
      write(path / name, "");
    }
  }
  /// Returns lines "label<TAB>path", as in recorded/image_folder.txt.
  [[nodiscard]] FileLines samples() const {
    FileLines lines;
    size_t label = 0;
    for (const auto& one : find_images(path)) {
      for (const auto& image : one.images)
        lines.push_back(std::to_string(label) + "\t" + image.string().substr(path.string().size() + 1));
      ++label;
    }
    return lines;
  }
  [[nodiscard]] FileLines classes() const {
    FileLines names;
    for (const auto& one : find_images(path)) names.push_back(one.name);
    return names;
  }
  [[nodiscard]] std::string about() const { return "image_folder: " + path.string() + ": "; }
};

}  // namespace

TEST_CASE("classes and samples have the order of torchvision's ImageFolder, for extensions in any case") {
  const auto expected = testing::lines_of(TEST_SOURCE_DIR "/tests/data/sources/recorded/image_folder.txt");
  FileLines names;
  for (const auto& line : expected) names.push_back(line.substr(line.find('\t') + 1));
  std::reverse(names.begin(), names.end());
  const EmptyFiles files(names);
  CHECK(files.samples() == expected);
  CHECK(files.classes() == FileLines{"10", "9", "Zebra", "ant", "ant 3", "ant-2", "\xc3\xa4rger"});
}

TEST_CASE("a hidden folder is not a class, shifts no label, is not searched, and a warning names it") {
  const EmptyFiles files({".ipynb_checkpoints/a-checkpoint.png", ".git/config", "cat/a.png", "dog/b.png",
                          "dog/.ipynb_checkpoints/b-checkpoint.png", "dog/deep/c.png", "dog/deep/.cache/d.png"});
  FileLines samples;
  const auto lines = logged([&] {
    samples = files.samples();
    (void)files.samples();
  });
  CHECK(samples == FileLines{"0\tcat/a.png", "1\tdog/b.png", "1\tdog/deep/c.png"});
  CHECK(lines == FileLines{files.about() +
                           "hidden folders are left out: '.git', '.ipynb_checkpoints', 'dog/.ipynb_checkpoints', "
                           "'dog/deep/.cache'"});
  const EmptyFiles many({".1/a", ".2/a", ".3/a", ".4/a", ".5/a", ".6/a", ".7/a", "cat/a.png"});
  CHECK(logged([&] { CHECK(many.classes() == FileLines{"cat"}); }) ==
        FileLines{many.about() + "hidden folders are left out: '.1', '.2', '.3', '.4', '.5', and 2 more"});
}

TEST_CASE("one warning counts images of unsupported formats by extension; other files are ignored") {
  const EmptyFiles files({"cat/a.png", "cat/b.bmp", "cat/c.BMP", "cat/d.webp", "dog/a.jpg", "dog/b.tiff", "dog/x/c.tif",
                          "dog/notes.txt", "dog/x/labels.csv"});
  FileLines samples;
  const auto lines = logged([&] { samples = files.samples(); });
  CHECK(samples == FileLines{"0\tcat/a.png", "1\tdog/a.jpg"});
  CHECK(lines ==
        FileLines{files.about() +
                  "images of formats that are not read are left out: 2 .bmp, 1 .tif, 1 .tiff, 1 .webp; convert "
                  "them to PNG or JPEG"});
  const EmptyFiles plain({"cat/a.png", "cat/notes.txt", "dog/b.JPEG"});
  CHECK(logged([&] { (void)plain.samples(); }).empty());
}

TEST_CASE("a class with images of unsupported formats only is refused with their counts") {
  const EmptyFiles files({"cat/a.png", "dog/a.bmp", "dog/b.bmp", "dog/c.webp"});
  CHECK(message([&] { (void)ImageFolderSource({.path = files.path}); }, ErrorKind::data) ==
        "image_folder: " + files.file("dog") +
            " has no images: expected .jpg, .jpeg or .png files, found 2 .bmp, 1 .webp; convert them to PNG or JPEG");
  const EmptyFiles hidden({".ipynb_checkpoints/a.png"});
  CHECK(message([&] { (void)ImageFolderSource({.path = hidden.path}); }, ErrorKind::data) ==
        "image_folder: " + hidden.path.string() +
            " has no folders: expected one for each class, with .jpg, .jpeg or .png files in it");
}
