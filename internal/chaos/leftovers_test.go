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

// cleanupTime is how long resources may still exist after the last process has exited.
const cleanupTime = time.Second

// leftovers lists the processes, sockets, temporary files and shared-memory files that a job has
// left behind. before lists the shared-memory files that existed before the job.
func (j *job) leftovers(before []string) (text string) {
	end := time.Now().Add(cleanupTime)
	for {
		if text = j.findLeftovers(before); text == "" || time.Now().After(end) {
			return text
		}

		<-time.After(cleanupTime / 20)
	}
}

func (j *job) findLeftovers(before []string) string {
	var leftovers []string
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err.Error()
	}

	for _, p := range processes {
		// Ignore errors: the process may have exited or belong to another user.
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

func sharedMemory() (names []string) {
	entries, _ := os.ReadDir("/dev/shm") // fails if there is no such directory
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}

	return names
}
