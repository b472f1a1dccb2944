package chaos

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// leftovers lists the resources that a job still holds cleanupTime after its last process has
// exited. sharedBefore is the result of sharedMemory before the job.
func (j *job) leftovers(sharedBefore []string) string {
	const (
		cleanupTime  = time.Second
		pollInterval = 50 * time.Millisecond
	)
	deadline := time.Now().Add(cleanupTime)
	for {
		text := j.findLeftovers(sharedBefore)
		if text == "" || time.Now().After(deadline) {
			return text
		}

		<-time.After(pollInterval)
	}
}

// findLeftovers lists the processes, temporary files, shared-memory files and sockets of a job.
func (j *job) findLeftovers(sharedBefore []string) string {
	var leftovers []string
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err.Error()
	}

	for _, path := range environments {
		// Reading fails if the process has exited or belongs to another user.
		environment, err := os.ReadFile(path)
		if err == nil && bytes.Contains(environment, []byte(jobVariable+"="+j.id)) {
			pid := filepath.Base(filepath.Dir(path))
			leftovers = append(leftovers, "process "+pid)
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
		if !slices.Contains(sharedBefore, name) {
			leftovers = append(leftovers, name+" in shared memory")
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
