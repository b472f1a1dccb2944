package chaos

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// leftovers lists the resources that a job still holds a short time after its last process has
// exited. before is the result of sharedMemory before the job.
func (j *job) leftovers(before []string) string {
	const cleanupTime = time.Second
	deadline := time.Now().Add(cleanupTime)
	for {
		text := j.findLeftovers(before)
		if text == "" || time.Now().After(deadline) {
			return text
		}

		<-time.After(cleanupTime / 20)
	}
}

// findLeftovers lists the processes, temporary files, shared-memory files and sockets of a job.
func (j *job) findLeftovers(before []string) string {
	var leftovers []string
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err.Error()
	}

	for _, p := range processes {
		// The process may have exited or belong to another user.
		text, err := os.ReadFile(p)
		if err == nil && bytes.Contains(text, []byte(jobVariable+"="+j.id)) {
			leftovers = append(leftovers, "process "+filepath.Base(filepath.Dir(p)))
		}
	}

	files, err := os.ReadDir(j.folder)
	if err != nil {
		return err.Error()
	}

	for _, f := range files {
		leftovers = append(leftovers, "file "+f.Name())
	}

	for _, name := range sharedMemory() {
		if !slices.Contains(before, name) {
			leftovers = append(leftovers, fmt.Sprintf("%s in shared memory", name))
		}
	}

	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err.Error()
	}

	if strings.Contains(string(sockets), storeSocket(j.id)) {
		leftovers = append(leftovers, "socket "+storeSocket(j.id))
	}

	return strings.Join(leftovers, ", ")
}

// sharedMemory returns the names of all shared-memory files of symmem.
func sharedMemory() (names []string) {
	entries, _ := os.ReadDir("/dev/shm") // fails if the directory does not exist
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}

	return names
}
