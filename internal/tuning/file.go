package tuning

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxFileBytes is the maximum length of a file. A table needs about 4 KiB for each operation and
// number of ranks.
const maxFileBytes = 16 << 20

// ReadFile reads a table from a regular file. It returns an error for devices, which may have no
// end, and for pipes, which only one rank could read. Errors of system calls wrap an
// *fs.PathError. Errors about the contents do not.
func ReadFile(name string) (*Table, error) {
	// Without O_NONBLOCK, opening a pipe would wait for its writer.
	const unusedMode = 0 // No file is created.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, unusedMode)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}

	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}

	encoded, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}

	if len(encoded) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes, so it is not a tuning table",
			name, maxFileBytes)
	}

	return Decode(encoded)
}
