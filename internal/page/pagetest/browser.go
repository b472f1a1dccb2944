// Package pagetest controls Chromium in tests of web pages.
//
// It uses the DevTools protocol: it writes commands to a pipe, and reads answers and events from
// another pipe. All of these are messages. For example, these messages open a tab:
//
//	command  {"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}
//	answer   {"id": 1, "result": {"targetId": "A5"}}
//
// Another command then creates a session for the tab. A command with the ID of this session is for
// the tab, and so is an event with this ID.
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

// Browser is a running Chromium. It is safe for concurrent use.
type Browser struct {
	t       testing.TB
	command *exec.Cmd
	stderr  lockedBuffer // output of Chromium, for errors

	mu       sync.Mutex           // guards the fields below
	commands *os.File             // the pipe for commands
	lastID   int                  // ID of the latest command; IDs count from 1
	answers  map[int]chan message // channels for answers, by ID of the command
	pages    map[string]*Page     // the open tabs, by session ID
	exitErr  error                // why nothing more can be read, or nil
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

// callTimeout limits the wait for an answer. It is so long that only a browser that hangs exceeds
// it, even on a busy machine.
const callTimeout = 90 * time.Second

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
	outputOut, outputIn := newPipe(t) // for answers and events
	b := &Browser{
		t:        t,
		command:  command,
		commands: commandsIn,
		answers:  map[int]chan message{},
		pages:    map[string]*Page{},
	}
	// Chromium reads commands from descriptor 3, and writes answers and events to descriptor 4.
	command.ExtraFiles = []*os.File{commandsOut, outputIn}
	command.Stderr = &b.stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	commandsOut.Close() // Chromium has copies of these descriptors
	outputIn.Close()
	receiverDone := make(chan struct{})
	go func() {
		defer close(receiverDone)
		b.receive(outputOut)
		outputOut.Close()
	}()
	t.Cleanup(func() {
		// Chromium exits when its pipe is closed. If it does not, the timer kills it.
		killTimer := time.AfterFunc(callTimeout, func() { _ = command.Process.Kill() })
		commandsIn.Close()
		<-receiverDone
		_ = command.Wait() // its result, the exit status, does not matter
		killTimer.Stop()
	})
	return b
}

// fonts holds the fonts of pages, so that pictures are the same on all machines. They contain those
// characters of DejaVu Sans that pages use.
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

// newPipe returns the two ends of a pipe: one for reading, and one for writing.
func newPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	return r, w
}

// message is a command, an answer or an event. In the pipes, a zero byte follows each message.
type message struct {
	ID      int             `json:"id,omitempty"`        // of the command; 0 in an event
	Session string          `json:"sessionId,omitempty"` // ID of a session; empty for the browser
	Method  string          `json:"method,omitempty"`    // of the command or event
	Params  any             `json:"params,omitempty"`    // of the command or event
	Result  json.RawMessage `json:"result,omitempty"`    // in an answer
	Error   *protocolError  `json:"error,omitempty"`     // in an answer; nil for success
}

type protocolError struct {
	Message string `json:"message"`
}

// call sends a command to a session and waits for the answer. If session is empty, the command is
// for the browser. call decodes the result in the answer into result, unless result is nil.
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

// send sends a command. It returns a channel for the answer, which is closed without a value if the
// browser exits.
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

	answer := make(chan message, 1) // so that receive never waits for call
	b.answers[command.ID] = answer
	if _, err := b.commands.Write(append(text, 0)); err != nil {
		return nil, err
	}

	return answer, nil
}

// receive reads answers and events until the browser exits. It passes answers to call, and events
// to pages.
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
			Params json.RawMessage `json:"params"` // replaces message.Params; decoded by the page
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
			answer <- m.message
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
