package pagetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"strings"
	"sync"
	"testing"
	"time"
)

// Page controls a tab of a Browser over the Chrome DevTools Protocol. Its methods end the test if
// the browser fails.
type Page struct {
	t       testing.TB
	browser *Browser
	session string // ID of the tab in calls of the protocol
	mu      sync.Mutex
	errors  []string // see Errors; guarded by mu
}

// Screen describes the browser window of a page.
type Screen struct {
	Width, Height int  // in CSS pixels
	Dark          bool // the user prefers dark colors
	Mobile        bool // the browser is that of a phone
}

// object is a JSON object, usually the parameters of a call.
type object = map[string]any

// Open opens a page in a new tab and waits until its body has the attribute data-ready.
func (b *Browser) Open(t testing.TB, url string, s Screen) *Page {
	t.Helper()
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	p := &Page{t: t, browser: b}
	p.failOn(b.call("", "Target.createTarget", object{"url": "about:blank"}, &target))
	p.failOn(b.call("", "Target.attachToTarget",
		object{"targetId": target.TargetID, "flatten": true}, &session))
	p.session = session.SessionID
	b.mu.Lock()
	b.pages[p.session] = p
	b.mu.Unlock()
	t.Cleanup(func() {
		_ = b.call("", "Target.closeTarget", object{"targetId": target.TargetID}, nil)
	})
	colorScheme := "light"
	if s.Dark {
		colorScheme = "dark"
	}
	for method, params := range map[string]object{
		"Page.enable": {}, "Runtime.enable": {}, "Log.enable": {},
		"Emulation.setDeviceMetricsOverride": {
			"width": s.Width, "height": s.Height, "deviceScaleFactor": 1, "mobile": s.Mobile,
		},
		"Emulation.setEmulatedMedia": {
			"features": []object{{"name": "prefers-color-scheme", "value": colorScheme}},
		},
		"Performance.enable": {"timeDomain": "threadTicks"},
	} {
		p.call(method, params, nil)
	}
	p.Navigate(url)
	return p
}

// Navigate navigates to a URL and waits until the page is ready.
func (p *Page) Navigate(url string) {
	p.t.Helper()
	p.call("Page.navigate", object{"url": url}, nil)
	urlWithoutQuery := url[:strings.IndexAny(url+"#", "?#")] // The page may change the rest.
	p.Wait(fmt.Sprintf(`location.href.startsWith(%q) && document.body.dataset.ready !== undefined`,
		urlWithoutQuery))
}

// failOn ends the test if err is not nil.
func (p *Page) failOn(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// call calls a method of the protocol and decodes the result into result, unless it is nil.
func (p *Page) call(method string, params object, result any) {
	p.t.Helper()
	p.failOn(p.browser.call(p.session, method, params, result))
}

// handleEvent handles an event of the tab. It records exceptions and entries of the log that are
// errors.
func (p *Page) handleEvent(method string, params json.RawMessage) {
	isException := method == "Runtime.exceptionThrown"
	isLogEntry := method == "Log.entryAdded"
	if isException || isLogEntry && bytes.Contains(params, []byte(`"level":"error"`)) {
		p.mu.Lock()
		p.errors = append(p.errors, string(params))
		p.mu.Unlock()
	}
}

// Errors returns the uncaught exceptions and the errors that the browser has logged.
func (p *Page) Errors() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.errors...)
}

// evaluation is the result of the method Runtime.evaluate.
type evaluation struct {
	Result           struct{ Value json.RawMessage }
	ExceptionDetails *struct {
		Exception struct{ Description string }
	}
}

// Eval evaluates a JavaScript expression and decodes its value into result, unless result is nil.
// If the value is a promise, Eval waits for it.
func (p *Page) Eval(expression string, result any) {
	p.t.Helper()
	var e evaluation
	p.call("Runtime.evaluate", object{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}, &e)
	if e.ExceptionDetails != nil {
		p.t.Fatalf("evaluating %s: %s", expression, e.ExceptionDetails.Exception.Description)
	}
	if result != nil {
		if err := json.Unmarshal(e.Result.Value, result); err != nil {
			p.t.Fatalf("evaluating %s: %v in %s", expression, err, e.Result.Value)
		}
	}
}

// Text returns the text of the first element that matches a CSS selector, or "".
func (p *Page) Text(selector string) string {
	p.t.Helper()
	var text string
	p.Eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector), &text)
	return text
}

// Wait waits until a JavaScript expression is true, or fails the test after half of callTimeout.
// Exceptions of the expression count as false.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	var isTrue bool
	p.Eval(fmt.Sprintf(`(async () => {
		const end = performance.now() + %d;
		while (performance.now() < end) {
			try { if (%s) { return true; } } catch {}
			await new Promise((f) => setTimeout(f, 10));
		}
		return false;
	})()`, (callTimeout/2).Milliseconds(), expression), &isTrue)
	if !isTrue {
		p.t.Fatalf("the expression %s did not become true\nerrors: %s", expression, p.Errors())
	}
}

// WaitUntilPainted waits until the page has set the attribute data-painted of its body to "yes".
func (p *Page) WaitUntilPainted() {
	p.t.Helper()
	p.WaitForFrames()
	p.Wait(`document.body.dataset.painted === "yes"`)
}

// PressKey presses a key by its name, such as "a", "Enter" or "ArrowLeft".
func (p *Page) PressKey(key string) {
	p.t.Helper()
	params := object{"type": "keyDown", "key": key}
	switch {
	case len(key) == 1:
		params["text"] = key
	case key == "Enter":
		params["text"] = "\r"
		params["windowsVirtualKeyCode"] = 13
	}
	p.call("Input.dispatchKeyEvent", params, nil)
	p.call("Input.dispatchKeyEvent", object{"type": "keyUp", "key": key}, nil)
}

// TypeText types text into the focused element.
func (p *Page) TypeText(text string) {
	p.t.Helper()
	p.call("Input.insertText", object{"text": text}, nil)
}

// TurnWheel turns the mouse wheel by dx and dy pixels while the mouse is at the point (x, y) of
// the window. If ctrl is set, Ctrl is held down.
func (p *Page) TurnWheel(x, y, dx, dy float64, ctrl bool) {
	p.t.Helper()
	const ctrlModifier = 2
	modifiers := 0
	if ctrl {
		modifiers = ctrlModifier
	}
	p.call("Input.dispatchMouseEvent", object{
		"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy, "modifiers": modifiers,
	}, nil)
}

// WaitForFrames waits for two animation frames, after which the current state of the page is
// drawn.
func (p *Page) WaitForFrames() {
	p.t.Helper()
	p.Eval(`new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))`, nil)
}

// Click clicks with the left button at the point (x, y) of the window.
func (p *Page) Click(x, y float64) {
	p.t.Helper()
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.call("Input.dispatchMouseEvent", object{
			"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1,
		}, nil)
	}
}

// Screenshot takes a screenshot of the window.
func (p *Page) Screenshot() image.Image {
	p.t.Helper()
	var screenshot struct{ Data string }
	p.call("Page.captureScreenshot", object{"format": "png"}, &screenshot)
	b, err := base64.StdEncoding.DecodeString(screenshot.Data)
	p.failOn(err)
	picture, err := png.Decode(bytes.NewReader(b))
	p.failOn(err)
	return picture
}

// CPUTimes returns the CPU time of the page's main thread so far, for scripts and in total.
func (p *Page) CPUTimes() (script, total time.Duration) {
	p.t.Helper()
	var r struct {
		Metrics []struct {
			Name  string
			Value float64
		}
	}
	p.call("Performance.getMetrics", object{}, &r)
	for _, m := range r.Metrics {
		switch m.Name {
		case "ScriptDuration":
			script = time.Duration(m.Value * float64(time.Second))
		case "TaskDuration":
			total = time.Duration(m.Value * float64(time.Second))
		}
	}
	return script, total
}
