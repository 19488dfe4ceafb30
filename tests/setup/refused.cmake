# SPDX-License-Identifier: Apache-2.0
# cmake -DCOMPILER= -DSTANDARD=20 -DSOURCE= -DINCLUDES=a;b -DDEFINITIONS=a;b -P refused.cmake
# SOURCE must not compile. The lines of the .txt beside it are all errors that the compiler gives.
list(TRANSFORM INCLUDES PREPEND "-I")
list(TRANSFORM DEFINITIONS PREPEND "-D")
execute_process(COMMAND ${COMPILER} -std=c++${STANDARD} -w ${DEFINITIONS} ${INCLUDES} -fsyntax-only "${SOURCE}"
                RESULT_VARIABLE result ERROR_VARIABLE text)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles")
endif()
string(REPLACE ";" "," text "${text}")   # no lists within a line
string(REPLACE "[" "(" text "${text}")
string(REPLACE "]" ")" text "${text}")
string(REGEX MATCHALL "[^\n]* error: [^\n]*" said "${text}")
string(REGEX REPLACE "\\.cpp$" ".txt" beside "${SOURCE}")
file(READ "${beside}" wanted)
string(REPLACE ";" "," wanted "${wanted}")
string(REGEX MATCHALL "[^\n]+" wanted "${wanted}")
list(LENGTH said said_count)
list(LENGTH wanted wanted_count)
foreach(line IN LISTS wanted)
  string(FIND "${said}" "${line}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected the error\n  ${line}\nbut the compiler says\n${text}")
  endif()
endforeach()
if(NOT said_count EQUAL wanted_count)
  message(FATAL_ERROR "expected ${wanted_count} errors, the compiler gives ${said_count}:\n${text}")
endif()
