// SPDX-License-Identifier: Apache-2.0
// Tests a build without libjpeg or libpng.
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/image_folder.hpp"

using namespace test_files;

namespace {

std::string error_of(const std::string& name) {
  const Folder folder;
  fs::create_directories(folder.path / "x");
  write(folder.path / "x" / name, read(fs::path(TEST_SOURCE_DIR "/tests/data/sources/recorded/images") / name));
  return message([&] { (void)accelerate::data::image_folder({.path = folder.path}); },
                 accelerate::ErrorKind::environment);
}

}  // namespace

#ifdef TEST_WITHOUT_JPEG
TEST_CASE("a build without libjpeg names the package at the first JPEG") {
  CHECK(error_of("rgb.jpg") ==
        "decode_jpeg: this build reads no JPEG; install libjpeg-dev and build again (ACCELERATE_WITH_JPEG=ON)");
}
#endif

#ifdef TEST_WITHOUT_PNG
TEST_CASE("a build without libpng names the package at the first PNG") {
  CHECK(error_of("rgb.png") ==
        "decode_png: this build reads no PNG; install libpng-dev and build again (ACCELERATE_WITH_PNG=ON)");
}
#endif
