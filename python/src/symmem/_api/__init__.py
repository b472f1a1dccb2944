"""What programs call, a module for each subject, and what becomes of a call."""
