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

	mu     sync.Mutex
	errors []string // see Errors; guarded by mu
}

// Screen describes the browser window of a page.
type Screen struct {
	Width, Height int  // in CSS pixels
	Dark          bool // whether the user prefers dark colors
	Mobile        bool // whether the browser is that of a phone
}

// object is a JSON object, usually the parameters of a call.
type object = map[string]any

// noSession is an argument of Browser.call for calls that belong to no tab.
const noSession = ""

// Open opens a page in a new tab and waits until its body has the attribute data-ready.
func (b *Browser) Open(t testing.TB, url string, s Screen) *Page {
	t.Helper()
	p := &Page{t: t, browser: b}
	var target struct{ TargetID string } // a target is a tab
	err := b.call(noSession, "Target.createTarget", object{"url": "about:blank"}, &target)
	p.failOn(err)
	var session struct{ SessionID string }
	attachParams := object{"targetId": target.TargetID, "flatten": true}
	err = b.call(noSession, "Target.attachToTarget", attachParams, &session)
	p.failOn(err)
	p.session = session.SessionID
	b.mu.Lock()
	b.pages[p.session] = p // receives the events of the tab from now on
	b.mu.Unlock()
	t.Cleanup(func() {
		closeParams := object{"targetId": target.TargetID}
		_ = b.call(noSession, "Target.closeTarget", closeParams, nil) // the browser may have exited
	})
	colorScheme := "light"
	if s.Dark {
		colorScheme = "dark"
	}

	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.call(domain+".enable", object{}, nil) // sends the events of handleEvent
	}

	p.call("Performance.enable", object{"timeDomain": "threadTicks"}, nil) // see CPUTimes
	p.call("Emulation.setDeviceMetricsOverride", object{
		"width": s.Width, "height": s.Height, "deviceScaleFactor": 1, "mobile": s.Mobile,
	}, nil)
	p.call("Emulation.setEmulatedMedia", object{
		"features": []object{{"name": "prefers-color-scheme", "value": colorScheme}},
	}, nil)
	p.Navigate(url)
	return p
}

// Navigate navigates to a URL and waits until the page is ready.
func (p *Page) Navigate(url string) {
	p.t.Helper()
	p.call("Page.navigate", object{"url": url}, nil)
	// The page may change the query and the fragment. The added "#" ends a URL without them.
	urlWithoutQuery := url[:strings.IndexAny(url+"#", "?#")]
	isThere := fmt.Sprintf(`location.href.startsWith(%q)`, urlWithoutQuery)
	p.Wait(isThere + ` && document.body.dataset.ready !== undefined`)
}

// failOn ends the test if err is not nil.
func (p *Page) failOn(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// call calls a method of the protocol for the tab. It decodes the answer into result, unless result
// is nil.
func (p *Page) call(method string, params object, result any) {
	p.t.Helper()
	err := p.browser.call(p.session, method, params, result)
	p.failOn(err)
}

// handleEvent handles an event of the tab. It records exceptions, and entries of the log that are
// errors.
func (p *Page) handleEvent(method string, params json.RawMessage) {
	isException := method == "Runtime.exceptionThrown"
	isErrorEntry := method == "Log.entryAdded" && bytes.Contains(params, []byte(`"level":"error"`))
	if isException || isErrorEntry {
		p.mu.Lock()
		p.errors = append(p.errors, string(params))
		p.mu.Unlock()
	}
}

// Errors returns the uncaught exceptions and the errors that the browser has logged.
func (p *Page) Errors() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.errors...) // a copy, because handleEvent may add more
}

// evaluation is the answer to the method Runtime.evaluate.
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
	params := object{"expression": expression, "awaitPromise": true, "returnByValue": true}
	p.call("Runtime.evaluate", params, &e)
	if e.ExceptionDetails != nil {
		p.t.Fatalf("evaluating %s: %s", expression, e.ExceptionDetails.Exception.Description)
	}

	if result == nil {
		return
	}

	if err := json.Unmarshal(e.Result.Value, result); err != nil {
		p.t.Fatalf("evaluating %s: %v in %s", expression, err, e.Result.Value)
	}
}

// Text returns the text of the first element that matches a CSS selector, or "".
func (p *Page) Text(selector string) string {
	p.t.Helper()
	var text string
	p.Eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector), &text)
	return text
}

// Wait waits until a JavaScript expression is true. Exceptions of the expression count as false.
// Wait ends the test after half of callTimeout, before the call itself times out.
func (p *Page) Wait(expression string) {
	p.t.Helper()
	limit := callTimeout / 2
	// The browser evaluates the expression every 10 ms.
	poll := fmt.Sprintf(`(async () => {
		const end = performance.now() + %d;
		while (performance.now() < end) {
			try { if (%s) { return true; } } catch {}
			await new Promise((f) => setTimeout(f, 10));
		}
		return false;
	})()`, limit.Milliseconds(), expression)
	var isTrue bool
	p.Eval(poll, &isTrue)
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
		params["windowsVirtualKeyCode"] = 13 // the code of Enter
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

// WaitForFrames waits for two animation frames. The first one draws the current state of the page,
// and the second one begins when this is done.
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

// CPUTimes returns the CPU time that the page's main thread has used so far: for scripts, and for
// everything.
func (p *Page) CPUTimes() (script, total time.Duration) {
	p.t.Helper()
	var answer struct {
		Metrics []struct {
			Name  string
			Value float64
		}
	}
	p.call("Performance.getMetrics", object{}, &answer)
	for _, m := range answer.Metrics {
		duration := time.Duration(m.Value * float64(time.Second)) // if the metric is a time
		switch m.Name {
		case "ScriptDuration":
			script = duration
		case "TaskDuration":
			total = duration
		}
	}

	return script, total
}
