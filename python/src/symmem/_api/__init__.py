"""The functions that programs call, a module for each subject."""
