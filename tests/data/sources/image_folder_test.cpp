// SPDX-License-Identifier: Apache-2.0
// recorded/images has files from Pillow, each with the pixels that Pillow decodes from it.
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/image.hpp"
#include "accelerate/data/sources/image_folder.hpp"
#include "accelerate/data/sources/npy.hpp"
#include "tests/data/sources/png_bytes.hpp"

using accelerate::ErrorKind;
using accelerate::data::BrokenImage;
using accelerate::data::decode_image;
using accelerate::data::image_folder;
using accelerate::data::ImageFolder;
using accelerate::data::ImageFolderSource;
using accelerate::data::map_npy;
using accelerate::data::OnError;
using namespace test_files;

namespace {

const fs::path recorded_images = TEST_SOURCE_DIR "/tests/data/sources/recorded/images";
using Options = torch::nn::functional::InterpolateFuncOptions;

at::Tensor decoded(const std::string& file) {
  return decode_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

std::string broken(const std::string& file) {
  try {
    (void)decoded(file);
  } catch (const BrokenImage& image) {
    return image.what();
  }
  return "nothing thrown";
}

at::Tensor expected(const std::string& name) { return map_npy(recorded_images / (name + ".npy")); }

/// A folder of classes with copies of recorded images.
struct Classes : Folder {
  void add(const std::string& name, const std::string& image) const {
    fs::create_directories((path / name).parent_path());
    write(path / name, read(recorded_images / image));
  }
  [[nodiscard]] std::string refused(ImageFolder options = {.path = {}}) const {
    options.path = path;
    return message([&] { (void)ImageFolderSource(options).read(torch::arange(1, torch::kLong)); }, ErrorKind::data);
  }
};

at::Tensor first(int64_t count) { return torch::arange(count, torch::kLong); }

/// A JPEG with another size in its header.
std::string with_size(std::string jpeg, uint16_t height, uint16_t width) {
  const auto frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  jpeg.replace(frame + 5, 4, big_endian(uint32_t{height} << 16U | width));
  return jpeg;
}

}  // namespace

TEST_CASE("every kind of JPEG and PNG is decoded to Pillow's pixels") {
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(recorded_images)) {
    const auto name = entry.path().filename().string();
    if (entry.path().extension() == ".npy") continue;
    CAPTURE(name);
    CHECK(decoded(read(entry.path())).equal(expected(name)));
    ++seen;
  }
  CHECK(seen == 16);
}

TEST_CASE("16-bit PNG keeps the upper 8 bits, interlacing is supported, an alpha channel is dropped") {
  const std::string rows("\0\x12\x34\x56\x78\x9a\xbc", 7);
  CHECK(decoded(png(1, 1, 16, 2, rows)).equal(torch::tensor({0x12, 0x56, 0x9a}, torch::kByte).view({3, 1, 1})));
  CHECK(decoded(png(1, 1, 8, 6, std::string("\0\x01\x02\x03\x80", 5)))
            .equal(torch::tensor({1, 2, 3}, torch::kByte).view({3, 1, 1})));
  // 2x2 grey, interlaced: the first pass has pixel (0, 0), the sixth (0, 1), the seventh row 1.
  const auto interlaced = decoded(png(2, 2, 8, 0, std::string("\0\x0a\0\x0b\0\x0c\x0d", 7), true));
  CHECK(interlaced.equal(torch::tensor({10, 11, 12, 13}, torch::kByte).view({1, 2, 2}).expand({3, 2, 2})));
}

TEST_CASE("labels are indices of sorted folder names; samples are sorted by folder, then file") {
  const Classes classes;
  classes.add("dog/b.PNG", "grey.png");
  classes.add("dog/a.jpeg", "rgb.jpg");
  classes.add("cat/z.jpg", "grey.jpg");
  classes.add("cat/deeper/a.png", "rgb.png");
  write(classes.path / "cat" / "notes.txt", "no image");
  write(classes.path / "readme.png", "no class");
  const ImageFolderSource source({.path = classes.path, .dtype = torch::kByte, .classes = 2});
  CHECK(source.classes() == std::vector<std::string>{"cat", "dog"});
  CHECK(source.size() == 4);
  CHECK(source.skipped() == 0);
  const auto batch = source.read(first(4));
  CHECK(batch.target.equal(torch::tensor({0, 0, 1, 1}, torch::kLong)));
  CHECK(batch.data.equal(
      at::stack({expected("grey.jpg"), expected("rgb.png"), expected("rgb.jpg"), expected("grey.png")})));
}

TEST_CASE("linked files and folders count as in torchvision; a link to a parent adds nothing") {
  const Classes folder, elsewhere;
  folder.add("cat/a.png", "grey.png");
  elsewhere.add("far/b.png", "grey.png");
  elsewhere.add("far/deep/c.png", "grey.png");
  fs::create_directory_symlink(elsewhere.path / "far", folder.path / "cat" / "more");
  fs::create_directory_symlink(folder.path / "cat", folder.path / "cat" / "self");
  fs::create_directory_symlink(folder.path / "cat", elsewhere.path / "far" / "back");
  fs::create_symlink(elsewhere.path / "far" / "b.png", folder.path / "cat" / "z.png");
  fs::create_directory_symlink(elsewhere.path / "far", folder.path / "dog");
  const ImageFolderSource source({.path = folder.path});
  CHECK(source.classes() == std::vector<std::string>{"cat", "dog"});
  // Cats: a, z, more/b, more/deep/c. Dogs: b, deep/c, and a and z through the link `back`; the link `self` adds
  // nothing.
  CHECK(source.size() == 8);
  CHECK(source.read(first(8)).target.sum().item<int64_t>() == 4);
}

TEST_CASE("CMYK and YCCK images, with Adobe's inversion, are supported") {
  const Classes classes;
  const std::vector<std::string> names{"cmyk_black.jpg", "cmyk_without_marker.jpg", "ycck.jpg"};
  for (const auto& name : names) classes.add("x/" + name, name);
  const auto batch = ImageFolderSource({.path = classes.path, .dtype = torch::kByte}).read(first(3));
  for (int64_t i = 0; i < 3; ++i) CHECK(batch.data[i].equal(expected(names[static_cast<size_t>(i)])));
  CHECK_FALSE(batch.data[0].equal(batch.data[2]));
}

TEST_CASE("batches are pixel / 255, as in torchvision's ToTensor, in the requested order") {
  const Classes classes;
  classes.add("x/a.jpg", "rgb.jpg");
  classes.add("y/a.png", "rgb.png");
  auto loader = image_folder({.path = classes.path}, {.batch_size = 2});
  const auto batch = *loader.begin();
  CHECK(batch.data.dtype() == torch::kFloat);
  CHECK(batch.data.equal(at::stack({expected("rgb.jpg"), expected("rgb.png")}).to(torch::kFloat).div(255)));
  const ImageFolderSource source({.path = classes.path, .dtype = torch::kByte});
  CHECK(source.read(torch::tensor({1, 0, 1}, torch::kLong)).target.equal(torch::tensor({1, 0, 1}, torch::kLong)));
}

TEST_CASE("images are resized as by torch's interpolate, with and without antialias") {
  const Classes classes;
  classes.add("x/a.jpg", "rgb.jpg");
  write(classes.path / "x" / "b.png", png(2, 1, 8, 2, std::string("\0\x01\x02\x03\x40\x50\x60", 7)));
  const auto image = expected("rgb.jpg").unsqueeze(0);
  for (const auto& [height, width] : {std::pair{8, 9}, std::pair{40, 30}, std::pair{17, 23}}) {
    for (const bool antialias : {true, false}) {
      const auto how = Options().size(std::vector<int64_t>{height, width}).mode(torch::kBilinear).align_corners(false);
      const ImageFolderSource source(
          {.path = classes.path, .size = {{height, width}}, .antialias = antialias, .dtype = torch::kByte});
      const auto batch = source.read(first(2));
      CHECK(batch.data.sizes() == at::IntArrayRef{2, 3, height, width});
      CHECK(batch.data[0].equal(torch::nn::functional::interpolate(image, Options(how).antialias(antialias))[0]));
    }
  }
}

TEST_CASE("an image of another size is refused with both sizes and the option") {
  const Classes classes;
  classes.add("x/a.jpg", "rgb.jpg");
  write(classes.path / "x" / "b.png", png(2, 1, 8, 2, std::string(7, '\0')));
  const ImageFolderSource source({.path = classes.path});
  CHECK(source.read(first(1)).data.sizes() == at::IntArrayRef{1, 3, 17, 23});
  CHECK(message([&] { (void)source.read(first(2)); }, ErrorKind::data) ==
        "image_folder: sample 1, " + classes.file("x/b.png") +
            " is 1x2 pixels: expected 17x23, as the first; ImageFolder::size makes all equal; OnError::skip skips such "
            "samples");
}

TEST_CASE("an invalid image is refused with its sample, its file and the reason") {
  const Classes classes;
  classes.add("x/a.jpg", "rgb.jpg");
  const auto error_of = [&](const std::string& name, const std::string& bytes) {
    write(classes.path / "x" / name, bytes);
    const ImageFolderSource source({.path = classes.path, .size = {{4, 4}}});
    auto error_text = message([&] { (void)source.read(first(2)); }, ErrorKind::data);
    fs::remove(classes.path / "x" / name);
    return error_text;
  };
  const auto path = classes.file("x/b.jpg");
  CHECK(error_of("b.jpg", "GIF89a") ==
        "image_folder: sample 1, " + path +
            " does not decode: expected ff d8 ff (JPEG) or 89 50 4e 47 (PNG) at its start, "
            "found 47 49 46 38; OnError::skip skips such samples");
  CHECK(error_of("b.jpg", "") ==
        "image_folder: sample 1, " + path +
            " does not decode: expected ff d8 ff (JPEG) or 89 50 4e 47 (PNG) at its start, found no "
            "byte; OnError::skip skips such samples");
  const auto whole = read(recorded_images / "rgb.jpg");
  CHECK(error_of("b.jpg", whole.substr(0, 700)) ==
        "image_folder: sample 1, " + path +
            " does not decode: Premature end of JPEG file; OnError::skip skips such samples");
  CHECK(broken(read(recorded_images / "rgb.png").substr(0, 900)) == "the file ends within the image");
  auto damaged = read(recorded_images / "rgb.png");
  damaged[500] = static_cast<char>(damaged[500] ^ 0x55);
  CHECK(broken(damaged) == "IDAT: incorrect data check");
}

TEST_CASE("a header that claims an impossibly large image is refused") {
  const auto jpeg = with_size(read(recorded_images / "rgb.jpg"), 65000, 65000);
  CHECK(broken(jpeg) ==
        "its header has 65000x65000 pixels, more than a file of " + std::to_string(jpeg.size()) + " bytes holds");
  const auto large = png(60000, 50000, 8, 2, "abc");
  CHECK(broken(large) ==
        "its header has 50000x60000 pixels, more than a file of " + std::to_string(large.size()) + " bytes holds");
  // A one-bit pixel expands to 24 bits.
  CHECK(broken(png(28000, 28000, 1, 0, "abc") + std::string(100'000, 'x')) ==
        "its header has 28000x28000 pixels, must be at most 178956970 in all");
  // The same for a padded file.
  CHECK(broken(with_size(read(recorded_images / "rgb.jpg"), 22000, 22000) + std::string(1'000'000, 'x')) ==
        "its header has 22000x22000 pixels, must be at most 178956970 in all");
}

TEST_CASE("a truncated image is refused at any length") {
  for (const std::string name :
       {"rgb.jpg", "progressive.jpg", "cmyk_black.jpg", "ycck.jpg", "rgb.png", "palette.png"}) {
    const auto whole = read(recorded_images / name);
    for (size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(name);
      CAPTURE(length);
      CHECK(broken(whole.substr(0, length)) != "nothing thrown");
    }
  }
}

TEST_CASE("with skip, invalid images are omitted before the first epoch, counted and logged once") {
  const Classes classes;
  write(fs::path(classes.path / "a.txt"), "");
  classes.add("x/b.jpg", "rgb.jpg");
  classes.add("y/d.png", "rgb.png");
  write(classes.path / "x" / "a.jpg", "broken");
  write(classes.path / "x" / "c.png", png(2, 1, 8, 2, std::string(7, '\0')));
  write(classes.path / "y" / "c.jpg", read(recorded_images / "rgb.jpg").substr(0, 300));
  const ImageFolder folder{.path = classes.path, .dtype = torch::kByte, .on_error = OnError::skip};
  const auto lines = logged([&] {
    const ImageFolderSource source(folder);
    CHECK(source.size() == 2);
    CHECK(source.skipped() == 3);
    const auto batch = source.read(first(2));
    CHECK(batch.data.equal(at::stack({expected("rgb.jpg"), expected("rgb.png")})));
    CHECK(batch.target.equal(torch::tensor({0, 1}, torch::kLong)));
    (void)ImageFolderSource(folder);
  });
  CHECK(lines ==
        std::vector<std::string>{"image_folder: 3 of 5 images are left out; the first: " + classes.file("x/a.jpg") +
                                 " does not decode: expected ff d8 ff (JPEG) or 89 50 4e 47 (PNG) at its start, "
                                 "found 62 72 6f 6b"});
  auto resized = folder;
  resized.size = {{5, 5}};
  CHECK(logged([&] { CHECK(ImageFolderSource(resized).size() == 3); }).size() == 1);
  fs::remove(classes.path / "x" / "b.jpg");
  fs::remove(classes.path / "x" / "c.png");
  fs::remove(classes.path / "y" / "d.png");
  CHECK(classes.refused(folder) ==
        "image_folder: all 2 images are broken; the first: " + classes.file("x/a.jpg") +
            " does not decode: expected ff d8 ff (JPEG) or 89 50 4e 47 (PNG) at its start, found "
            "62 72 6f 6b");
}

TEST_CASE("folders without classes or images, wrong numbers of classes and invalid options are refused") {
  const Classes classes;
  CHECK(classes.refused() == "image_folder: " + classes.path.string() +
                                 " has no folders: expected one for each class, with .jpg, .jpeg or .png files in it");
  classes.add("x/a.jpg", "rgb.jpg");
  CHECK(classes.refused({.path = {}, .classes = 3}) ==
        "image_folder: " + classes.path.string() + " has 1 folders: expected 3, one for each class");
  fs::create_directories(classes.path / "y");
  CHECK(classes.refused() ==
        "image_folder: " + classes.file("y") + " has no images: expected .jpg, .jpeg or .png files");
  CHECK(message([] { (void)image_folder({.path = "/nowhere"}); }, ErrorKind::io) ==
        "image_folder: /nowhere cannot be read: No such file or directory");
  const auto usage = [](const ImageFolder& folder) {
    return message([&] { (void)image_folder(folder); }, ErrorKind::usage);
  };
  CHECK(usage({.path = {}, .dtype = torch::kHalf}) == "image_folder: dtype is float16, must be float32 or uint8");
  CHECK(usage({.path = {}, .size = {{0, 3}}}) == "image_folder: size is 0x3, must be at least 1x1");
}
