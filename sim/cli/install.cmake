# cmake --install and the two packages, `cpack -G DEB` and `cpack -G TGZ`, in the build folder.
#
# The .deb depends on Debian's shared libraries (dpkg-shlibdeps finds which). The tarball holds those
# libraries, libstdc++ too, below lib/oomcast, where the program's run path, relative to itself, finds
# them: it runs from any folder on any system whose glibc is not older than this machine's.
include(GNUInstallDirs)
set(private_libraries ${CMAKE_INSTALL_LIBDIR}/oomcast)
file(RELATIVE_PATH to_libraries /${CMAKE_INSTALL_BINDIR} /${private_libraries})
set_target_properties(oomcast PROPERTIES INSTALL_RPATH "$ORIGIN/${to_libraries}")
# The old tag holds for libraries of libraries as well.
target_link_options(oomcast PRIVATE -Wl,--disable-new-dtags)

# The manual page and the completions say what the program says of itself.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${generated})
add_custom_command(
  OUTPUT ${generated}/oomcast.1.gz ${generated}/oomcast.bash ${generated}/_oomcast
         ${generated}/oomcast.fish
  COMMAND oomcast man > ${generated}/oomcast.1
  COMMAND gzip -9nf ${generated}/oomcast.1
  COMMAND oomcast completions bash > ${generated}/oomcast.bash
  COMMAND oomcast completions zsh > ${generated}/_oomcast
  COMMAND oomcast completions fish > ${generated}/oomcast.fish
  DEPENDS oomcast
  VERBATIM)
add_custom_target(oomcast_documents ALL
                  DEPENDS ${generated}/oomcast.1.gz ${generated}/oomcast.bash
                          ${generated}/_oomcast ${generated}/oomcast.fish)

install(TARGETS oomcast RUNTIME_DEPENDENCY_SET oomcast_libraries COMPONENT program)
install(FILES ${generated}/oomcast.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
        COMPONENT program)
install(FILES ${generated}/oomcast.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME oomcast COMPONENT program)
install(FILES ${generated}/_oomcast DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions
        COMPONENT program)
install(FILES ${generated}/oomcast.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/sim/report/schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/oomcast
        COMPONENT program FILES_MATCHING PATTERN *.json)
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT program)
# Their licences, as Debian's packages carry them, for the code of theirs that the program holds.
foreach(package libboost-dev libeigen3-dev libfmt-dev libisal-dev libre2-dev libsimdjson-dev
                libzstd-dev nlohmann-json3-dev robin-map-dev)
  if(EXISTS /usr/share/doc/${package}/copyright)
    file(REAL_PATH /usr/share/doc/${package}/copyright licence)
    install(FILES ${licence} DESTINATION ${CMAKE_INSTALL_DOCDIR}/third-party RENAME ${package}
            COMPONENT program)
  endif()
endforeach()
install(RUNTIME_DEPENDENCY_SET oomcast_libraries
        PRE_EXCLUDE_REGEXES "^ld-linux" "^libc\\.so" "^libm\\.so"
        LIBRARY DESTINATION ${private_libraries} COMPONENT libraries EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME oomcast)
set(CPACK_PACKAGE_CONTACT "oomcast developers")
set(CPACK_PACKAGE_VENDOR "oomcast developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "forecasts the GPU memory of LLM serving over time")
set(CPACK_PACKAGE_DESCRIPTION "From a launch line of vLLM, SGLang or TensorRT-LLM, a model's config.json,
the name of a GPU and a trace of requests: what every byte is for at each moment, the KV capacity,
when and why memory runs out, and what to change. No GPU and no engine is needed.")
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_SOURCE_DIR}/package_parts.cmake)
include(CPack)
