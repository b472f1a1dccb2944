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

// callTimeout is the time in which the browser must answer a command. It is so long that only a
// browser that hangs exceeds it, even on a busy machine.
const callTimeout = 90 * time.Second

// Browser is a running Chromium. It is safe for concurrent use.
type Browser struct {
	t       testing.TB
	command *exec.Cmd
	stderr  lockedBuffer // for errors

	mu       sync.Mutex           // guards the fields below
	commands *os.File             // pipe to the browser
	lastID   int                  // ID of the latest command; IDs count from 1
	answers  map[int]chan message // where receive sends answers, by ID of the command
	pages    map[string]*Page     // by session ID
	exitErr  error                // why receive has ended, or nil
}

// lockedBuffer is a buffer that is safe for concurrent use.
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

// message is a command to the browser, the answer to a command, or an event.
type message struct {
	ID      int             `json:"id,omitempty"`        // of the command; 0 in an event
	Session string          `json:"sessionId,omitempty"` // ID of a tab; empty for the browser
	Method  string          `json:"method,omitempty"`    // of the command or event
	Params  any             `json:"params,omitempty"`    // of the command or event
	Result  json.RawMessage `json:"result,omitempty"`    // in an answer
	Error   *protocolError  `json:"error,omitempty"`     // in an answer; nil for success
}

// protocolError is the error of a command.
type protocolError struct {
	Message string `json:"message"`
}

// Open starts Chromium, which runs until the end of the test. It skips the test if Chromium is not
// installed.
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
	commandsOut, commandsIn := newPipe(t)
	eventsOut, eventsIn := newPipe(t)
	b := &Browser{
		t:        t,
		command:  command,
		commands: commandsIn,
		answers:  map[int]chan message{},
		pages:    map[string]*Page{},
	}
	// Chromium reads commands from descriptor 3, and writes answers and events to descriptor 4.
	command.ExtraFiles = []*os.File{commandsOut, eventsIn}
	command.Stderr = &b.stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	commandsOut.Close() // Chromium has its own descriptors
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

// fonts makes screenshots the same on all machines. It contains those glyphs of DejaVu Sans that
// pages use.
//
//go:embed fonts
var fonts embed.FS

// writeFonts writes the fonts to a folder. It returns the path of a configuration file for
// fontconfig that selects only these fonts.
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

// newPipe returns the ends of a pipe for reading and writing.
func newPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	return r, w
}

// receive reads messages from the browser until the browser exits. It passes answers to call, and
// events to the pages. Each message ends with a zero byte.
func (b *Browser) receive(pipe *os.File) {
	const bufferBytes = 1 << 20 // for screenshots
	r := bufio.NewReaderSize(pipe, bufferBytes)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.markExited(err)
			return
		}

		var m struct {
			message
			Params json.RawMessage `json:"params"` // hides message.Params; decoded by the page
		}
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.markExited(err)
			return
		}

		b.mu.Lock()
		page := b.pages[m.Session]
		answer := b.answers[m.ID]
		delete(b.answers, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && answer != nil:
			answer <- m.message // has room for the message, so call may have timed out
		case page != nil:
			page.handleEvent(m.Method, m.Params)
		}
	}
}

// markExited makes the waiting calls and all later calls return errors.
func (b *Browser) markExited(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exitErr = err
	for _, c := range b.answers {
		close(c)
	}

	b.answers = map[int]chan message{}
}

// call sends a command to a session, which is a tab, and waits for the answer. It decodes the
// answer into result, unless result is nil. If session is empty, it sends the command to the
// browser itself.
func (b *Browser) call(session, method string, params, result any) error {
	answer, err := b.send(session, method, params)
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
		output := b.stderr.String()
		return fmt.Errorf("calling %s: no answer within %v:\n%s", method, callTimeout, output)
	}
}

// send sends a command to the browser. It returns the channel for the answer, which is closed
// without a value if the browser exits.
func (b *Browser) send(session, method string, params any) (<-chan message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastID++
	command := message{ID: b.lastID, Session: session, Method: method, Params: params}
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}

	if b.exitErr != nil {
		return nil, b.exitErr
	}

	answer := make(chan message, 1)
	b.answers[command.ID] = answer
	if _, err := b.commands.Write(append(text, 0)); err != nil {
		return nil, err
	}

	return answer, nil
}
