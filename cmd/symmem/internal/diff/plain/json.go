package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// A decoder splits JSON into tokens. For example, {"a": [1, 2]} has the tokens {, "a", [, 1, 2, ]
// and }. The machine builds the value on its stack:
//
//   - The tokens { and [ push an empty dict or list. They also add a mark, which is the position on
//     the stack at which the items of this dict or list begin.
//   - The tokens "a", 1 and 2 push a value.
//   - The tokens } and ] remove the last mark, and move the values above it into the dict or list.
//
// So the number of marks is the number of objects and arrays that are still open.

// readJSON reads one JSON value and pushes it. It returns an error if anything but white space
// follows the value.
func (m *machine) readJSON(in *input) error {
	decoder := json.NewDecoder(in.r)
	decoder.UseNumber()
	for isComplete := false; !isComplete; {
		token, err := decoder.Token()
		if err != nil {
			return jsonError(err, decoder.InputOffset())
		}

		if err := m.addJSONToken(token); err != nil {
			return err
		}

		isComplete = len(m.marks) == 0
	}

	return checkJSONEnd(decoder)
}

// checkJSONEnd returns an error if the input goes on.
func checkJSONEnd(decoder *json.Decoder) error {
	_, err := decoder.Token()
	isToken := err == nil
	isInvalidToken := errors.As(err, new(*json.SyntaxError)) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case isToken || isInvalidToken:
		return formatError("it goes on after its end at byte %d", decoder.InputOffset())
	default: // the file cannot be read
		return jsonError(err, decoder.InputOffset())
	}
}

// jsonError converts an error of the decoder to an error for the user. offset is the number of
// bytes that the decoder has read.
func jsonError(err error, offset int64) error {
	isEOF := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if isEOF {
		return formatError("it is cut off after %d bytes", offset)
	}

	var syntaxError *json.SyntaxError
	if errors.As(err, &syntaxError) {
		return formatError("it is neither JSON nor a pickle of protocol 2 to 5: byte %d: %v",
			syntaxError.Offset, err)
	}

	return fmt.Errorf("reading JSON: %w", err)
}

// addJSONToken executes the operation of a token.
func (m *machine) addJSONToken(token json.Token) error {
	switch t := token.(type) {
	case json.Delim:
		return m.addJSONDelimiter(t)
	case string: // a value or the key of an object
		v, err := m.doc.findOrAddString([]byte(t))
		if err != nil {
			return err
		}

		return m.push(v)
	case json.Number:
		return m.push(parseJSONNumber(t))
	case bool:
		return m.push(boolValue(t))
	}

	const none = Value(0)
	return m.push(none) // for null
}

// parseJSONNumber returns a number as an integer or, if it is not an int64, as a float. A number
// that is too large for a float becomes an unsupported value.
func parseJSONNumber(number json.Number) Value {
	if n, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return intValue(n)
	}

	f, err := number.Float64()
	if err != nil {
		return makeValue(tagUnsupported, 0)
	}

	return floatValue(f)
}

// addJSONDelimiter begins or ends an object or an array.
func (m *machine) addJSONDelimiter(d json.Delim) error {
	switch d {
	case '{':
		if err := m.pushDict(); err != nil {
			return err
		}

		return m.addMark()
	case '[':
		if err := m.pushList(); err != nil {
			return err
		}

		return m.addMark()
	case '}':
		return m.appendToDict()
	default: // ']'
		return m.appendToList()
	}
}
