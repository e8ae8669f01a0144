"""Problems that programs are judged by: TOML files, and how they are read."""
