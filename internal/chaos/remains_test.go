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

// remainsTime bounds the clean-up after the last process.
const remainsTime = time.Second

// remains lists what a job has left behind: processes, its socket, temporary files, and new files
// of symmem in shared memory.
func (j *job) remains(before []string) (left string) {
	end := time.Now().Add(remainsTime)
	for {
		if left = j.look(before); left == "" || time.Now().After(end) {
			return left
		}
		<-time.After(remainsTime / 20)
	}
}

func (j *job) look(before []string) string {
	var left []string
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return err.Error()
	}
	for _, p := range processes {
		// The process may have ended, or belong to another user.
		text, err := os.ReadFile(p)
		if err == nil && bytes.Contains(text, []byte(jobVariable+"="+j.id)) {
			left = append(left, "process "+filepath.Base(filepath.Dir(p)))
		}
	}
	files, err := os.ReadDir(j.folder)
	if err != nil {
		return err.Error()
	}
	for _, f := range files {
		left = append(left, "file "+f.Name())
	}
	for _, name := range sharedMemory() {
		if !slices.Contains(before, name) {
			left = append(left, fmt.Sprintf("%s in shared memory", name))
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err.Error()
	}
	if strings.Contains(string(sockets), store(j.id)) {
		left = append(left, "socket "+store(j.id))
	}
	return strings.Join(left, ", ")
}

// sharedMemory lists the files of symmem in shared memory.
func sharedMemory() (names []string) {
	// It may not exist.
	entries, _ := os.ReadDir("/dev/shm")
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}
	return names
}
