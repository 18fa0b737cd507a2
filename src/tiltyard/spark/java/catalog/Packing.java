package tiltyard;

import java.io.File;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;

import org.codehaus.commons.compiler.util.resource.MapResourceCreator;
import org.codehaus.commons.compiler.util.resource.Resource;
import org.codehaus.commons.compiler.util.resource.FileResource;
import org.codehaus.janino.ClassLoaderIClassLoader;
import org.codehaus.janino.Compiler;

/** Compiles sources with the compiler among Spark's jars, and packs the classes: {@code Packing <jar> <source>...}. */
public final class Packing {

    private Packing() {
    }

    public static void main(String[] given) throws Exception {
        MapResourceCreator made = new MapResourceCreator();
        Compiler compiler = new Compiler();
        compiler.setIClassLoader(new ClassLoaderIClassLoader(Thread.currentThread().getContextClassLoader()));
        compiler.setSourceVersion(8);
        compiler.setTargetVersion(8);
        compiler.setClassFileCreator(made);
        List sources = new ArrayList();
        for (int index = 1; index < given.length; index++) {
            sources.add(new FileResource(new File(given[index])));
        }
        compiler.compile((Resource[]) sources.toArray(new Resource[0]));
        JarOutputStream jar = new JarOutputStream(new FileOutputStream(given[0]));
        try {
            String[] names = (String[]) made.getMap().keySet().toArray(new String[0]);
            Arrays.sort(names);
            for (int index = 0; index < names.length; index++) {
                jar.putNextEntry(new JarEntry(names[index]));
                jar.write((byte[]) made.getMap().get(names[index]));
                jar.closeEntry();
            }
        } finally {
            jar.close();
        }
    }
}
