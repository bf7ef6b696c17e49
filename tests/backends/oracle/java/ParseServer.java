import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.melin.superior.parser.oracle.antlr4.OracleLexer;
import io.github.melin.superior.parser.oracle.antlr4.OracleParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.antlr.v4.runtime.BaseErrorListener;
import org.antlr.v4.runtime.CharStream;
import org.antlr.v4.runtime.CharStreams;
import org.antlr.v4.runtime.CommonTokenStream;
import org.antlr.v4.runtime.RecognitionException;
import org.antlr.v4.runtime.Recognizer;
import org.antlr.v4.runtime.Token;

/** Reads a statement from each line, a JSON string, and answers with its syntax errors, a JSON list. */
public final class ParseServer {
    private static final int SHOWN = 200;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader statements =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        String line;
        while ((line = statements.readLine()) != null) {
            answers.println(json.writeValueAsString(errors(json.readValue(line, String.class))));
        }
    }

    /** The grammar knows keywords in upper case only. */
    private static List<String> errors(String statement) {
        Errors found = new Errors();
        CharStream read = CharStreams.fromString(statement.toUpperCase(Locale.ROOT));
        OracleLexer lexer = new OracleLexer(read);
        lexer.removeErrorListeners();
        lexer.addErrorListener(found);
        CommonTokenStream tokens = new CommonTokenStream(lexer);
        OracleParser parser = new OracleParser(tokens);
        parser.removeErrorListeners();
        parser.addErrorListener(found);
        boolean isBlock = parser.unit_statement().anonymous_block() != null;
        if (isBlock && tokens.LA(1) == OracleLexer.SEMICOLON) {
            tokens.consume();
        } else if (isBlock) {
            found.texts.add("a block without its semicolon");
        }
        Token next = tokens.LT(1);
        if (next.getType() != Token.EOF) {
            int column = next.getCharPositionInLine();
            found.texts.add(next.getLine() + ":" + column + ": not read to its end");
        }
        return found.texts;
    }

    private static final class Errors extends BaseErrorListener {
        private final List<String> texts = new ArrayList<>();

        @Override
        public void syntaxError(
                Recognizer<?, ?> recognizer, Object symbol, int line, int column, String message,
                RecognitionException error) {
            String shown = message.substring(0, Math.min(SHOWN, message.length()));
            texts.add(line + ":" + column + ": " + shown);
        }
    }
}
