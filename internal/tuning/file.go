package tuning

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// A table needs about 4 KiB for each operation and number of ranks.
const maxFileBytes = 16 << 20

// ReadFile reads a table from a regular file: a device may have no end, and only one rank could
// read a pipe. Errors of system calls wrap an *fs.PathError; errors about the contents do not.
func ReadFile(name string) (*Table, error) {
	// Without O_NONBLOCK, opening a pipe would wait for its writer.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	encoded, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(encoded) > maxFileBytes:
		return nil, fmt.Errorf("%s has more than %d bytes, so it is not a tuning table",
			name, maxFileBytes)
	}
	return Decode(encoded)
}
