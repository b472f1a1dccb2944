// Package pagetest controls Chromium in tests of web pages, through the DevTools protocol over
// pipes.
package pagetest

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const callTimeout = 90 * time.Second // for an answer of the browser

// Browser is a running Chromium. It is safe for concurrent use.
type Browser struct {
	t        testing.TB
	command  *exec.Cmd
	stderr   lockedBuffer
	mu       sync.Mutex // guards the fields below
	commands *os.File
	lastID   int
	answers  map[int]chan message
	pages    map[string]*Page // by session ID
	exitErr  error
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the output so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *protocolError  `json:"error,omitempty"`
}

type protocolError struct {
	Message string `json:"message"`
}

// Open starts Chromium until the end of the test. It skips the test if Chromium is not installed.
func Open(t testing.TB) *Browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skipf("Chromium is not installed: %v", err)
	}
	folder := t.TempDir()
	command := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu",
		"--remote-debugging-pipe", "--user-data-dir="+folder, "--no-first-run",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
		"--disable-extensions", "--hide-scrollbars", "--font-render-hinting=none",
		"--force-color-profile=srgb", "--disable-lcd-text", "--disable-sync", "about:blank")
	command.Env = append(os.Environ(), "FONTCONFIG_FILE="+writeFonts(t, folder))
	commandsOut, commandsIn := pipe(t)
	eventsOut, eventsIn := pipe(t)
	b := &Browser{
		t: t, command: command, commands: commandsIn, answers: map[int]chan message{},
		pages: map[string]*Page{},
	}
	command.ExtraFiles = []*os.File{commandsOut, eventsIn} // descriptors 3 and 4
	command.Stderr = &b.stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	commandsOut.Close()
	eventsIn.Close()
	receiverDone := make(chan struct{})
	go func() {
		defer close(receiverDone)
		b.receive(eventsOut)
		eventsOut.Close()
	}()
	t.Cleanup(func() {
		// Chromium exits when its pipe is closed. If it does not, the timer kills it.
		killTimer := time.AfterFunc(callTimeout, func() { _ = command.Process.Kill() })
		commandsIn.Close()
		<-receiverDone
		_ = command.Wait() // the exit status does not matter
		killTimer.Stop()
	})
	return b
}

// fonts makes screenshots the same on all machines. It contains the used glyphs of DejaVu Sans.
//
//go:embed fonts
var fonts embed.FS

// writeFonts writes the fonts to a folder, and returns a fontconfig file that selects only them.
func writeFonts(t testing.TB, folder string) string {
	t.Helper()
	if err := os.CopyFS(folder, fonts); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "fonts.conf")
	text := fmt.Sprintf("<fontconfig><dir>%s/fonts</dir><cachedir>%s/cache</cachedir></fontconfig>",
		folder, folder)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// receive reads messages from the browser until it exits. Each message ends with a zero byte.
func (b *Browser) receive(pipe *os.File) {
	r := bufio.NewReaderSize(pipe, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.markExited(err)
			return
		}
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.markExited(err)
			return
		}
		b.mu.Lock()
		page, answer := b.pages[m.Session], b.answers[m.ID]
		delete(b.answers, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && answer != nil:
			answer <- m.message
		case page != nil:
			page.handleEvent(m.Method, m.Params)
		}
	}
}

func (b *Browser) markExited(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exitErr = err
	for _, c := range b.answers {
		close(c)
	}
	b.answers = map[int]chan message{}
}

// call sends a command to a session (a page) or, without session, to the browser, and decodes the
// answer into result.
func (b *Browser) call(session, method string, params, result any) error {
	answer := make(chan message, 1)
	b.mu.Lock()
	b.lastID++
	id := b.lastID
	text, err := json.Marshal(message{ID: id, Session: session, Method: method, Params: params})
	if err == nil && b.exitErr != nil {
		err = b.exitErr
	}
	if err == nil {
		b.answers[id] = answer
		_, err = b.commands.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("calling %s: %w", method, err)
	}
	select {
	case m, isAnswered := <-answer:
		switch {
		case !isAnswered:
			return fmt.Errorf("calling %s: the browser has exited:\n%s", method, b.stderr.String())
		case m.Error != nil:
			return fmt.Errorf("calling %s: %w", method, errors.New(m.Error.Message))
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(callTimeout):
		return fmt.Errorf("calling %s: no answer within %v:\n%s", method, callTimeout, b.stderr.String())
	}
}
