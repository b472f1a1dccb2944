package sys

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// BindProcess binds all threads of this process to one processor.
func BindProcess(processor int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("listing the threads of this process: %w", err)
	}

	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}

		// The thread may have exited since it was listed.
		if err := bind(id, processor); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}

	return nil
}
